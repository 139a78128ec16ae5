"""Qwen3.5's next-token layers against the same layers in PyTorch."""

import jax
import numpy as np
import pytest
import torch
from next_token import random_pair, with_layers
from tiny import make_checkpoint, random_prompt

from tensorfold.checkpoints.interface import CheckpointError
from tensorfold.runtime.load import describe, load
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, make_state

LENGTH = 75


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
    tokens = random_prompt(np.random.default_rng(1), LENGTH)
    with torch.no_grad():
        text = torch.tensor([tokens])
        hidden = reference.model(text[:, :-1]).last_hidden_state
        wanted = reference.lm_head(layers(reference, text[:, 1:], hidden))[0].numpy()
    model = load(with_layers(reference, layers))
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
