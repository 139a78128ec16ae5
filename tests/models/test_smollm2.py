"""The default model against transformers with the same weights, on 500 tokens of text."""

from real_weights import TEXT, compare
from transformers import LlamaConfig, LlamaForCausalLM

from tensorfold.checkpoints.interface import Checkpoint

TOKENS = 500


def test_smollm2_predicts_what_transformers_predicts(default_checkpoint: Checkpoint) -> None:
    tokens = default_checkpoint.tokenizer.encode(TEXT)[:TOKENS]
    assert len(tokens) == TOKENS
    agreement = compare(default_checkpoint, tokens, LlamaForCausalLM, LlamaConfig, TOKENS)
    print(f"\nSmolLM2 {agreement}")
    assert agreement.argmax >= 0.995
    assert agreement.divergence < 1e-4
    # The model reads the text: both are not just equally wrong.
    assert agreement.surprise < 3.5
