import hashlib

import pytest
from toy import ToyRunner, ask

from tensorfold.engine.interface import Limits, Sampling
from tensorfold.engine.scheduler import Scheduler
from tensorfold.engine.seeds import derive_seed, salt_from_environment
from tensorfold.engine.thread import ThreadEngine, make_reply
from tensorfold.engine.worker import Worker
from tensorfold.runtime.packed import pack_settings
from tensorfold.runtime.step import StateShape

FIXED = 2418267834652783048
"""Of the prompt 1, 2, 3 without a salt: a seed must stay the same from version to version."""


@pytest.mark.parametrize(
    ("prompt", "salt", "text"),
    [
        ([1], 0, b"1|0"),
        ([1, 2, 300], 0, b"1,2,300|0"),
        ([1, 23], 0, b"1,23|0"),
        ([12, 3], 0, b"12,3|0"),
        ([5, 5], -7, b"5,5|-7"),
        ([5, 5], 2**70, b"5,5|1180591620717411303424"),
    ],
)
def test_a_seed_is_the_first_eight_bytes_of_a_hash(
    prompt: list[int], salt: int, text: bytes
) -> None:
    first = hashlib.sha256(text).digest()[:8]
    wanted = sum(byte << (8 * place) for place, byte in enumerate(first)) % 2**63
    assert derive_seed(prompt, salt) == wanted


def test_a_fixed_seed() -> None:
    assert derive_seed([1, 2, 3], 0) == FIXED


def test_the_salt_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORFOLD_SEED_SALT", raising=False)
    assert salt_from_environment() == 0
    monkeypatch.setenv("TENSORFOLD_SEED_SALT", "-12")
    assert salt_from_environment() == -12
    monkeypatch.setenv("TENSORFOLD_SEED_SALT", "pepper")
    with pytest.raises(ValueError, match="TENSORFOLD_SEED_SALT must be an integer, not 'pepper'"):
        salt_from_environment()


def test_an_engine_does_not_start_with_a_bad_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_SEED_SALT", "1.5")
    shape = StateShape(1, 64, 1)
    with pytest.raises(ValueError, match="TENSORFOLD_SEED_SALT"):
        ThreadEngine(Worker(ToyRunner(shape), Scheduler(shape)), Limits(64, 97, 1))


def test_only_a_request_without_a_seed_gets_one() -> None:
    def settings(seed: int | None, salt: int) -> list[int]:
        request = ask("one", (1, 2, 3))
        sampling = Sampling(temperature=1.0, seed=seed)
        fields = vars(request) | {"sampling": sampling}
        return make_reply(type(request)(**fields), lambda event: None, 1000, salt).settings.tolist()

    assert settings(None, 0) == settings(FIXED, 0) != settings(None, 1)
    assert settings(5, 0) == settings(5, 1) == settings(5 + 2**64, 0)
    assert settings(-1, 0) == settings(2**64 - 1, 0)
    assert settings(0, 0) == pack_settings(1.0, 0, 1.0, 0.0, 0).tolist()
