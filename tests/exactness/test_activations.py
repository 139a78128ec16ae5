"""Rows in int8: another arithmetic, as exact as the first."""

import numpy as np
import pytest
from platforms import IMPLEMENTATIONS
from tiny import TinyCheckpoint, random_prompt, tiny_checkpoint

from tensorfold.checkpoints.interface import Tensor
from tensorfold.checkpoints.quantise import quantise
from tensorfold.engine.verify import LANES, make_cases, run_together, verify
from tensorfold.runtime.load import LoadedModel, load, with_activations
from tensorfold.runtime.step import StateShape, StepFunction

needs_kernels = pytest.mark.skipif("cpu" not in IMPLEMENTATIONS, reason="no CPU kernels here")


class Coded(TinyCheckpoint):
    """Whose matrices are codes, of 4 bits in some layers and of 8 in others."""

    def read(self, name: str) -> Tensor:
        array = super().read(name)
        return quantise(array, 4 if "mlp" in name else 8, 16) if array.ndim == 2 else array


def coded(variant: str) -> Coded:
    return Coded(**vars(tiny_checkpoint(variant)))


def open_step(model: LoadedModel) -> StepFunction:
    step = StepFunction(model, StateShape(LANES, 128, 2 * LANES, snapshots=4), (1, 8, 64))
    step.compile()
    return step


@needs_kernels
@pytest.mark.parametrize("variant", ["llama", "qwen3_5_moe"])
def test_replies_do_not_depend_on_how_they_are_computed(variant: str) -> None:
    model = load(coded(variant))
    rounded, plain = open_step(with_activations(model, "int8")), open_step(model)
    cases = make_cases([random_prompt(np.random.default_rng(0), 6) * 10], tokens=8)
    comparisons = list(verify(rounded, cases))
    assert len(comparisons) > 10
    assert not [each for each in comparisons if each.difference]
    (one,) = run_together(rounded, [cases[0]]).values()
    (other,) = run_together(plain, [cases[0]]).values()
    assert one.digests != other.digests


def test_float32_is_the_model_itself() -> None:
    model = load(coded("llama"))
    assert with_activations(model, "float32") is model


@needs_kernels
def test_a_model_without_codes_is_refused() -> None:
    model = load(tiny_checkpoint("llama"))
    with pytest.raises(ValueError, match="this model has none: `tensorfold convert MODEL OUT --q"):
        with_activations(model, "int8")


def test_the_plain_ops_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")
    with pytest.raises(ValueError, match="int8 activations need the CPU kernels"):
        with_activations(load(coded("llama")), "int8")
