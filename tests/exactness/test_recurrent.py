"""`verify` on a model whose lanes hold state of their own."""

import numpy as np
from tiny import open_step, random_prompt, tiny_checkpoint

from tensorfold.engine.verify import LANES, make_cases, verify


def test_recurrent_layers_are_exact() -> None:
    kinds = ["linear_attention", "full_attention"]
    checkpoint = tiny_checkpoint("nemotron_h", layers_block_type=kinds)
    step = open_step(checkpoint, lanes=LANES, context=128, buckets=(8, 256))
    rng = np.random.default_rng(0)
    # Over the end of a chunk, in a loop so that there are drafts.
    cases = make_cases([random_prompt(rng, 6) * 10], tokens=8)
    comparisons = list(verify(step, cases))
    assert not [each for each in comparisons if each.difference]
    assert any(each.name.endswith("drafted") for each in comparisons)
