"""Nemotron-H's next-token layers in PyTorch, around transformers' own layers.

`mtp.layers.N` in the published files: the first has `enorm`, `hnorm` and `eh_proj` before it, the
last `final_layernorm` behind it.
"""

from typing import Any

import torch
from tiny import VARIANTS, TinyCheckpoint, make_checkpoint, random_model
from transformers import NemotronHConfig, PreTrainedModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock, NemotronHRMSNorm

KINDS = ["full_attention", "moe"]


class NextTokenLayers(torch.nn.Module):
    """With the names that checkpoints have below `mtp.`."""

    def __init__(self, config: NemotronHConfig, kinds: list[str]):
        super().__init__()
        width, epsilon = config.hidden_size, config.layer_norm_epsilon
        own = type(config)(**(config.to_dict() | {"layers_block_type": kinds}))
        own._attn_implementation = "eager"
        self.layers = torch.nn.ModuleList([NemotronHBlock(own, i) for i in range(len(kinds))])
        self.layers[0].enorm = NemotronHRMSNorm(width, epsilon)
        self.layers[0].hnorm = NemotronHRMSNorm(width, epsilon)
        self.layers[0].eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        self.layers[-1].final_layernorm = NemotronHRMSNorm(width, epsilon)

    def forward(
        self, model: PreTrainedModel, following: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Hidden rows [batch, rows, D] from the tokens after them and the model's own."""
        first: Any = self.layers[0]
        last: Any = self.layers[-1]
        embedded = first.enorm(model.get_input_embeddings()(following))
        x = first.eh_proj(torch.cat([embedded, first.hnorm(hidden)], dim=-1))
        rows = x.shape[1]
        position = torch.arange(rows)[None].expand(len(x), -1)
        mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
        for layer in self.layers:
            x = layer(x, attention_mask=mask, position_ids=position)
        return last.final_layernorm(x)


def with_layers(model: PreTrainedModel, layers: NextTokenLayers) -> TinyCheckpoint:
    """What a folder with both would hold."""
    checkpoint = make_checkpoint(model, "tiny with next-token layers")
    checkpoint.config["num_nextn_predict_layers"] = 1
    checkpoint.config["mtp_layers_block_type"] = [layer.block_type for layer in layers.layers]
    for name, weight in layers.state_dict().items():
        checkpoint.arrays[f"mtp.{name}"] = weight.numpy(force=True)
    return checkpoint


def random_pair(
    variant: str = "nemotron_h", kinds: list[str] | None = None, seed: int = 0
) -> tuple[PreTrainedModel, NextTokenLayers]:
    """A model of one of tiny.py's variants and layers of random weights."""
    torch.manual_seed(seed)
    model = random_model(VARIANTS[variant], seed)
    layers = NextTokenLayers(model.config, kinds or KINDS).eval()
    with torch.no_grad():
        for name, weight in layers.named_parameters():
            noise = torch.randn(weight.shape)
            if "norm" in name:
                weight.copy_(1 + 0.2 * noise)
            else:
                weight.copy_(1.5 * noise / weight.shape[-1] ** 0.5)
        for name, buffer in layers.named_buffers():
            if "correction" in name:
                buffer.copy_(0.2 * torch.randn(buffer.shape))
    return model, layers


def counting() -> TinyCheckpoint:
    """A model whose likeliest next token is the token plus one, and layers that know it too: the
    head's rows are the table's, moved by one, and what mixes rows adds little."""
    model, layers = random_pair()
    first: Any = layers.layers[0]
    with torch.no_grad():
        for module in (model, layers):
            for name, weight in module.named_parameters():
                if name.removesuffix(".weight").endswith(("out_proj", "o_proj", "down_proj")):
                    weight.mul_(0.02)
        table = model.get_input_embeddings().weight
        model.lm_head.weight.copy_(table.roll(1, 0))
        width = table.shape[1]
        first.eh_proj.weight.copy_(torch.eye(width, 2 * width))
    return with_layers(model, layers)
