"""What int8 activations change: a model's predictions with them beside those with float32.

`python -m benchmarks.activations [MODEL] [--tokens N] [FILE ...]` reads texts, by default prose and
code of this repository, each in windows of 512 tokens, and compares the distributions of every
next token: their divergence, how often the likeliest token is the same, and the perplexity of each.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from tensorfold.checkpoints.hub import open_checkpoint, resolve
from tensorfold.runtime.load import LoadedModel, load, with_activations
from tensorfold.runtime.packed import Layout, Span, pages_for
from tensorfold.runtime.step import StateShape, forward, make_state

_WINDOW = 512
_ROWS = 256
_ROOT = Path(__file__).parent.parent
_TEXTS = (_ROOT / "docs/architecture.md", _ROOT / "tensorfold/engine/worker.py")


class Reader:
    """Reads one window after another, always into the same pages."""

    def __init__(self, model: LoadedModel):
        pages = pages_for(_WINDOW)
        self._layout = Layout(_ROWS, 1, pages)
        self._table = np.arange(pages, dtype=np.int32)[None]
        self._state = make_state(model.spec.state, StateShape(1, _WINDOW, pages))
        self._leaves = model.leaves
        self._run = jax.jit(
            lambda leaves, state, packed: forward(model, self._layout, leaves, state, packed)
        )

    def read(self, window: Sequence[int]) -> Iterator[np.ndarray]:
        """Log probabilities [rows, V] after each of the window's tokens, in blocks."""
        for start in range(0, len(window), _ROWS):
            tokens = window[start : start + _ROWS]
            packed = self._layout.pack([Span(0, start, tokens, 0)], self._table)
            logits, self._state = self._run(self._leaves, self._state, packed)
            yield np.asarray(jax.nn.log_softmax(logits))[: len(tokens)]


@dataclass
class Totals:
    """Sums over tokens."""

    tokens: int = 0
    divergence: float = 0.0
    worst: float = 0.0
    same: int = 0
    nats: float = 0.0
    nats_int8: float = 0.0

    def add(self, plain: np.ndarray, rounded: np.ndarray, following: Sequence[int]) -> None:
        """Log probabilities [rows, V] of both, and the tokens that really come."""
        rows = np.arange(len(following))
        plain, rounded = plain[: len(rows)], rounded[: len(rows)]
        each = (np.exp(plain) * (plain - rounded)).sum(axis=1)
        self.tokens += len(rows)
        self.divergence += float(each.sum())
        self.worst = max(self.worst, float(each.max()))
        self.same += int((plain.argmax(axis=1) == rounded.argmax(axis=1)).sum())
        self.nats -= float(plain[rows, following].sum())
        self.nats_int8 -= float(rounded[rows, following].sum())

    def lines(self) -> list[str]:
        """For people."""
        n = self.tokens
        return [
            f"{n} tokens: mean KL {self.divergence / n:.5f} nats (most {self.worst:.3f}), "
            f"likeliest token the same {self.same / n:.2%}",
            f"perplexity {np.exp(self.nats / n):.3f} with float32, "
            f"{np.exp(self.nats_int8 / n):.3f} with int8",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="as for tensorfold serve")
    parser.add_argument("files", nargs="*", type=Path, default=_TEXTS, metavar="FILE")
    parser.add_argument("--tokens", type=int, default=2048, metavar="N", help="of each text")
    options = parser.parse_args()
    checkpoint = open_checkpoint(resolve(options.model))
    model = load(checkpoint)
    readers = Reader(model), Reader(with_activations(model, "int8"))
    totals = Totals()
    for file in options.files:
        tokens = checkpoint.tokenizer.encode(file.read_text())[: options.tokens]
        for start in range(0, len(tokens), _WINDOW):
            window = tokens[start : start + _WINDOW]
            begun = 0
            for plain, rounded in zip(*(reader.read(window) for reader in readers), strict=True):
                totals.add(plain, rounded, window[begun + 1 : begun + 1 + len(plain)])
                begun += len(plain)
    print(f"{checkpoint.name}, {', '.join(file.name for file in options.files)}")
    print("\n".join(totals.lines()))


if __name__ == "__main__":
    main()
