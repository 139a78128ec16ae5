"""The prompts that `tensorfold verify` asks."""

from tensorfold.checkpoints.interface import Tokenizer

_TEXTS = (
    "The capital of France is",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "Name: Ada\nCity: London\nName: Alan\nCity: Wilmslow\nName: Grace\nCity:",
    "Once upon a time there was a lighthouse keeper who wrote down every ship that passed, its "
    "colour, its flag and the weather. One evening, ",
)

_LENGTHS = (5, 33, 64, 150)
"""Short of a row tile, across one, exactly a page, and across pages and row buckets."""


def make_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """One prompt of token ids for each length."""
    prompts = []
    for text, length in zip(_TEXTS, _LENGTHS, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=True)
        prompts.append((ids * (length // len(ids) + 1))[:length])
    return prompts
