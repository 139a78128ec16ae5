"""The seed of a request that brings none."""

import hashlib
import os
from collections.abc import Sequence


def derive_seed(prompt: Sequence[int], salt: int) -> int:
    """A 63-bit seed from the prompt's token ids, so that asking again gives the same reply.

    The first eight bytes, little-endian and without the top bit, of the SHA-256 of the decimal ids
    joined by commas, a bar, and the salt.
    """
    text = ",".join(map(str, prompt)) + f"|{salt}"
    first = hashlib.sha256(text.encode()).digest()[:8]
    return int.from_bytes(first, "little") & (2**63 - 1)


def salt_from_environment() -> int:
    """TENSORFOLD_SEED_SALT, 0 when unset. Raises ValueError if it is not an integer."""
    text = os.environ.get("TENSORFOLD_SEED_SALT", "0")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"TENSORFOLD_SEED_SALT must be an integer, not {text!r}") from None
