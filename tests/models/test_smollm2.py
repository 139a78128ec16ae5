"""The default model against transformers with the same weights, on 500 tokens of text."""

from collections.abc import Sequence

import jax
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tensorfold.checkpoints.interface import Checkpoint, Quantised
from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, forward, make_state

TOKENS = 500
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


def ours(checkpoint: Checkpoint, tokens: Sequence[int]) -> np.ndarray:
    """Logits [S, V], in two blocks of rows."""
    model = load(checkpoint)
    pages = TOKENS // 64 + 1
    layout = Layout(ROWS, 1, pages)
    state = make_state(model, StateShape(lanes=1, context=pages * 64, pages=pages))
    table = np.arange(pages, dtype=np.int32)[None]

    @jax.jit
    def run(leaves, state, packed):
        return forward(model, layout, leaves, state, packed)

    blocks = []
    for start in range(0, len(tokens), ROWS):
        chunk = tokens[start : start + ROWS]
        packed = layout.pack([Span(0, start, chunk, 0)], table)
        logits, state = run(model.leaves, state, packed)
        blocks.append(np.asarray(logits)[: len(chunk)])
    return np.concatenate(blocks)


def theirs(checkpoint: Checkpoint, tokens: Sequence[int]) -> np.ndarray:
    """The same of transformers, with every weight dequantised."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**checkpoint.config))
    weights = {}
    for name in checkpoint.tensors:
        tensor = checkpoint.read(name)
        dense = tensor.dequantise() if isinstance(tensor, Quantised) else tensor
        weights[name] = torch.from_numpy(np.array(dense, np.float32))
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    model.load_state_dict(weights, assign=True)
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(model.config)
    with torch.no_grad():
        return model.eval()(torch.tensor([list(tokens)])).logits[0].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_smollm2_predicts_what_transformers_predicts(default_checkpoint: Checkpoint) -> None:
    tokens = default_checkpoint.tokenizer.encode(TEXT)[:TOKENS]
    assert len(tokens) == TOKENS
    got = ours(default_checkpoint, tokens)
    wanted = theirs(default_checkpoint, tokens)
    agreement = np.mean(got.argmax(axis=-1) == wanted.argmax(axis=-1))
    p, q = log_softmax(wanted), log_softmax(got)
    divergence = (np.exp(p) * (p - q)).sum(axis=-1).mean()
    surprise = -p[np.arange(TOKENS - 1), tokens[1:]].mean()
    off = np.abs(got - wanted).max() / np.abs(wanted).max()
    print(
        f"\nSmolLM2 over {TOKENS} tokens: argmax equal {agreement:.2%}, mean KL {divergence:.2e}, "
        f"largest difference {off:.1e} of the largest logit, {surprise:.2f} nats a token"
    )
    assert agreement >= 0.995
    assert divergence < 1e-4
    # The model reads the text: both are not just equally wrong.
    assert surprise < 3.5
