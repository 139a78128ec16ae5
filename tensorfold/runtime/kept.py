"""Files that one start leaves for the next: whole or absent, checked when opened, bounded."""

import contextlib
import hashlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"tensorfold kept 1\n"
BORDER = 64
"""Data begins at a multiple of so many bytes, as arrays want it."""

_BEGIN = BORDER
"""Before the data: the mark and a SHA-256 of the data."""

_NEW = "new-"
"""How the names of files begin that are not whole yet."""

_NEW_SECONDS = 3600.0
"""After so long without a byte more, who was writing such a file has ended."""

LIMIT_BYTES = 16 * 2**30
"""The files of a folder together; those not used for longest go first."""


class KeptFiles:
    """Named byte strings in a folder. Losing any of them costs time and nothing else.

    A file appears under its name when it is complete. One that is damaged, or that can't be read
    or written, is as good as none. The folder may be deleted at any time, also while it is used.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES):
        self.folder = folder
        self.limit_bytes = limit_bytes

    def read(self, name: str) -> memoryview | None:
        """The bytes kept under `name`, mapped and read-only, or None; starts at 64-byte borders."""
        try:
            with (self.folder / name).open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                data = mapped[_BEGIN:]
                if bytes(mapped[:_BEGIN]) != _head(hashlib.sha256(data)):
                    return None
            os.utime(self.folder / name)  # The time of the last use.
            return data
        except (OSError, ValueError):
            return None

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> bool:
        """Keep `parts`, joined, under `name`; False where there is no room for them."""
        size = _BEGIN + sum(memoryview(part).nbytes for part in parts)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._make_room(size):
                return False
            digest = hashlib.sha256()
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=_NEW, delete=False) as file:
                try:
                    file.write(bytes(_BEGIN))
                    for part in parts:
                        digest.update(part)
                        file.write(part)
                    file.seek(0)
                    file.write(_head(digest))
                    file.close()
                    os.replace(file.name, self.folder / name)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Forget what is kept under `name`."""
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    def clear(self) -> None:
        """Forget everything."""
        with contextlib.suppress(OSError):
            for path in list(self.folder.iterdir()):
                self.remove(path.name)

    def _make_room(self, size: int) -> bool:
        """Remove what was never finished, and files until `size` bytes fit the limit; whether they
        also leave half the disk's free space."""
        if size > min(self.limit_bytes, shutil.disk_usage(self.folder).free // 2):
            return False
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.name.startswith(_NEW) and status.st_mtime < time.time() - _NEW_SECONDS:
                    path.unlink()
                    continue
                found.append((status.st_mtime, status.st_size, path.name))
        total = sum(each for _, each, _ in found)
        for _, freed, name in sorted(found):
            if total + size <= self.limit_bytes:
                break
            self.remove(name)
            total -= freed
        return True


def _head(digest: "hashlib._Hash") -> bytes:
    return (_MAGIC + digest.digest()).ljust(_BEGIN, b"\0")
