"""Next-token layers of Qwen3.5 and Nemotron-H against the same layers in PyTorch."""

from dataclasses import replace
from typing import Any

import jax
import nemotron_h_next_token as nemotron_h
import numpy as np
import pytest
import torch
from next_token import random_pair, with_layers
from tiny import TinyCheckpoint, make_checkpoint, random_prompt

from tensorfold.checkpoints.interface import CheckpointError
from tensorfold.runtime.load import describe, load
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, make_state

LENGTH = 75


def check_logits(reference: Any, layers: torch.nn.Module, checkpoint: TinyCheckpoint) -> None:
    """That the layers' logits are those of PyTorch."""
    tokens = random_prompt(np.random.default_rng(1), LENGTH)
    with torch.no_grad():
        text = torch.tensor([tokens])
        hidden = reference.model(text[:, :-1]).last_hidden_state
        wanted = reference.lm_head(layers(reference, text[:, 1:], hidden))[0].numpy()
    assert wanted.std() > 0.5
    model = load(checkpoint)
    following = model.spec.next_token
    assert following is not None
    layout = Layout(80, 1, 2)
    state = make_state(following.state, StateShape(1, 128, 2))
    packed = layout.pack([Span(0, 0, tokens[1:], 0)], np.arange(2, dtype=np.int32)[None])
    given = np.zeros((80, following.width), np.float32)
    given[: LENGTH - 1] = hidden[0].numpy()

    @jax.jit
    def run(leaves, packed, given, state):
        module = model.bind(leaves)
        rows, state = module.next_token(layout.unpack(packed)[0], given, state)
        return module.logits(rows)

    got = np.asarray(run(model.leaves, packed, given, state))[: LENGTH - 1]
    assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False, "attention_bias": True},
        {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24},
    ],
    ids=["tied", "untied, biases", "odd sizes"],
)
def test_logits_are_those_of_pytorch(changes: dict[str, object]) -> None:
    reference, layers = random_pair(**changes)
    check_logits(reference, layers, with_layers(reference, layers))


@pytest.mark.parametrize(
    ("variant", "kinds"),
    [
        ("nemotron_h", ["full_attention", "moe"]),
        ("nemotron_h odd sizes, biases", ["full_attention", "moe"]),
        ("nemotron_h groups of experts, latent", ["full_attention", "moe"]),
        ("nemotron_h", ["moe", "full_attention", "moe"]),
        ("nemotron_h one expert of two, no conv bias", ["full_attention"]),
    ],
)
def test_logits_of_nemotron_h_are_those_of_pytorch(variant: str, kinds: list[str]) -> None:
    reference, layers = nemotron_h.random_pair(variant, kinds)
    check_logits(reference, layers, nemotron_h.with_layers(reference, layers))


def test_published_names_of_nemotron_h() -> None:
    """Experts one by one, and a pattern of letters; no kinds are those that every model has."""
    plain = nemotron_h.with_layers(*nemotron_h.random_pair())
    published = nemotron_h.with_layers(*nemotron_h.random_pair())
    for name in [
        name for name in published.arrays if name.startswith("mtp.") and "experts." in name
    ]:
        if "shared" in name:
            continue
        place, _, kind = name.rpartition(".")
        for expert, matrix in enumerate(published.arrays.pop(name)):
            published.arrays[f"{place}.{expert}.{kind}.weight"] = matrix
    assert "mtp.layers.1.mixer.experts.5.down_proj.weight" in published.arrays
    del published.config["mtp_layers_block_type"]
    wanted = [np.asarray(each).tobytes() for each in jax.tree.leaves(load(plain).leaves)]
    for config in ({}, {"mtp_hybrid_override_pattern": "*E"}):
        found = replace(published, config=published.config | config)
        leaves = jax.tree.leaves(load(found).leaves)
        assert [np.asarray(each).tobytes() for each in leaves] == wanted


@pytest.mark.parametrize(
    "config",
    [
        {"num_nextn_predict_layers": 0},
        {"num_nextn_predict_layers": None},
        {"num_nextn_predict_layers": 2},
        {"mtp_layers_block_type": ["linear_attention", "moe"]},
        {"mtp_layers_block_type": ["attention", "later"]},
    ],
)
def test_layers_of_nemotron_h_that_are_left_aside(config: dict[str, object]) -> None:
    whole = nemotron_h.with_layers(*nemotron_h.random_pair())
    assert describe(whole).next_token is not None
    whole.config |= config
    assert describe(whole).next_token is None
    load(whole)


def test_layers_of_nemotron_h_that_a_checkpoint_leaves_out() -> None:
    bare = nemotron_h.with_layers(*nemotron_h.random_pair())
    bare.arrays = {name: each for name, each in bare.arrays.items() if not name.startswith("mtp.")}
    assert describe(bare).next_token is None
    load(bare)
    del bare.arrays["model.norm_f.weight"]
    with pytest.raises(CheckpointError, match=r"tensor model.norm_f.weight is missing"):
        load(bare)


def test_layers_that_a_checkpoint_leaves_out_are_not_missed() -> None:
    """Its config may still count them."""
    reference, layers = random_pair()
    bare = make_checkpoint(reference)
    bare.config["mtp_num_hidden_layers"] = 1
    assert describe(bare).next_token is None
    load(bare)
    del bare.arrays["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"tensor model.norm.weight is missing"):
        load(bare)
    whole = with_layers(reference, layers)
    whole.config["mtp_num_hidden_layers"] = 0
    assert describe(whole).next_token is None
    load(whole)
