"""A checkpoint's predictions against transformers with the same weights, on a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from tensorfold.checkpoints.interface import Checkpoint, Quantised
from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, make_state

ROWS = 256

TEXT = """\
The lighthouse stood where the river met the sea. Every evening the keeper, whose name was Ada, \
climbed the hundred and twelve steps with a can of oil, and every evening she wrote in her book \
what she had seen: the ships that passed, their flags, and the colour of the water. In 1887 a \
storm broke three of the nine panes. "It is nothing," she told the inspector. "Glass can be had \
from London in a week; the light was never out."

To boil an egg, bring a pan of water to a rolling boil, lower the egg in gently with a spoon, and \
wait six minutes for a soft yolk or ten for a hard one. Cool it under running water before you \
peel it. If you live in the mountains, where water boils at a lower temperature, add a minute for \
every 500 metres above the sea.

def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)

print(mean([1, 2, 3, 4]))  # 2.5

Photosynthesis turns carbon dioxide and water into sugar and oxygen. The energy for it comes from \
light, which chlorophyll absorbs, mostly red and blue; the green that is left over is what we see. \
Q: What is the capital of Australia? A: Canberra, not Sydney, which is the largest city. \
Q: Who wrote "Pride and Prejudice"? A: Jane Austen, who published it in 1813 without her name. \
Q: How many legs does a spider have? A: Eight, while an insect has six.

Dear Mr. Turner, thank you for your letter of the 4th of March. We regret that the book you ask \
for is out of print, but a copy may be found in the library of the university, where it can be \
read on Tuesdays and Thursdays between nine and five. Yours faithfully, E. Whitcombe, Librarian.

The committee met at noon. Present were the mayor, two engineers and a botanist. The first \
question was the bridge: it was built in 1931, it carries four thousand cars a day, and its paint \
has not been renewed since 1998. The engineers asked for a new survey before the winter. The \
botanist asked that the old lime trees on the north bank be spared, and the mayor agreed. The \
second question, the price of water, was put off until the spring.
"""


@dataclass(frozen=True)
class Agreement:
    """How two models agree on the last `tokens` of a text: the share of equal argmaxes, the mean
    divergence, the largest difference relative to the largest logit, and nats a token."""

    tokens: int
    argmax: float
    divergence: float
    off: float
    surprise: float

    def __str__(self) -> str:
        return (
            f"over {self.tokens} tokens: argmax equal {self.argmax:.2%}, mean KL "
            f"{self.divergence:.2e}, largest difference {self.off:.1e} of the largest logit, "
            f"{self.surprise:.2f} nats a token"
        )


def compare(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    model: type[PreTrainedModel],
    config: type[PretrainedConfig],
    scored: int,
) -> Agreement:
    """Compare the logits of the last `scored` tokens with those of transformers' `model`."""
    got = ours(checkpoint, tokens, scored)
    wanted = theirs(checkpoint, tokens, model, config, scored)
    p, q = log_softmax(wanted), log_softmax(got)
    return Agreement(
        tokens=scored,
        argmax=float(np.mean(got.argmax(axis=-1) == wanted.argmax(axis=-1))),
        divergence=float((np.exp(p) * (p - q)).sum(axis=-1).mean()),
        off=float(np.abs(got - wanted).max() / np.abs(wanted).max()),
        surprise=float(-p[np.arange(scored - 1), tokens[-scored + 1 :]].mean()),
    )


def ours(checkpoint: Checkpoint, tokens: Sequence[int], scored: int) -> np.ndarray:
    """Logits [scored, V], in blocks of rows."""
    model = load(checkpoint)
    pages = len(tokens) // 64 + 1
    layout = Layout(ROWS, 1, pages)
    state = make_state(model.spec.state, StateShape(lanes=1, context=pages * 64, pages=pages))
    table = np.arange(pages, dtype=np.int32)[None]

    @jax.jit
    def run(leaves, state, packed):
        rows, _, _ = layout.unpack(packed)
        return model.bind(leaves)(rows, state)

    @jax.jit
    def head(leaves, hidden):
        return model.bind(leaves).logits(hidden)

    first = len(tokens) - scored
    cuts = [*range(0, first, ROWS), *range(first, len(tokens), ROWS), len(tokens)]
    blocks = []
    for start, end in pairwise(cuts):
        packed = layout.pack([Span(0, start, tokens[start:end], 0)], table)
        hidden, state = run(model.leaves, state, packed)
        if start >= first:
            blocks.append(np.asarray(head(model.leaves, hidden))[: end - start])
    return np.concatenate(blocks)


def theirs(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    model: type[PreTrainedModel],
    config: type[PretrainedConfig],
    scored: int,
) -> np.ndarray:
    """The same of transformers, with every weight dequantised."""
    with torch.device("meta"):
        reference = model(config(**checkpoint.config))
    weights = {}
    for name in checkpoint.tensors:
        tensor = checkpoint.read(name)
        dense = tensor.dequantise() if isinstance(tensor, Quantised) else tensor
        weights[name] = torch.from_numpy(np.array(dense, np.float32))
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    reference.load_state_dict(weights, assign=True)
    # What is no weight was made on the meta device too: make it anew.
    inner, plain = reference.model, config(**checkpoint.config)
    inner.rotary_emb = type(inner.rotary_emb)(plain)
    if hasattr(inner.embed_tokens, "embed_scale"):
        scale = torch.tensor(inner.embed_tokens.scalar_embed_scale)
        inner.embed_tokens.embed_scale = scale
    with torch.no_grad():
        asked = torch.tensor([list(tokens)])
        return reference.eval()(asked, logits_to_keep=scored).logits[0].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    return shifted - np.log(total)
