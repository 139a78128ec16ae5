"""Qwen3.5's next-token layers in PyTorch, and a tiny model of a small language that has them."""

from functools import cache

import numpy as np
import torch
from tiny import TinyCheckpoint, make_checkpoint, random_model
from torch.nn import functional
from transformers import PreTrainedModel, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

STEPS = 150


class NextTokenLayers(torch.nn.Module):
    """With the names that checkpoints have below `mtp.`."""

    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        width = config.hidden_size
        full = type(config)(
            **(config.to_dict() | {"num_hidden_layers": 1, "layer_types": ["full_attention"]})
        )
        full._attn_implementation = "eager"
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(width, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(width, eps=config.rms_norm_eps)
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.layers = torch.nn.ModuleList([Qwen3_5DecoderLayer(full, 0)])
        self.norm = Qwen3_5RMSNorm(width, eps=config.rms_norm_eps)

    def forward(
        self, model: PreTrainedModel, following: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Hidden rows [batch, rows, D] from the tokens after them and the model's own."""
        embedded = model.model.embed_tokens(following)
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(both, dim=-1))
        rows = x.shape[1]
        position = torch.arange(rows)[None].expand(len(x), -1)
        turned = model.model.rotary_emb(x, position[None].expand(3, -1, -1))
        mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
        for layer in self.layers:
            x = layer(x, position_embeddings=turned, attention_mask=mask, position_ids=position)
        return self.norm(x)


def config(**changes: object) -> Qwen3_5TextConfig:
    """Of two layers, one of each kind."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "vocab_size": 300,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    return Qwen3_5TextConfig(**(sizes | changes))


def with_layers(model: PreTrainedModel, layers: NextTokenLayers) -> TinyCheckpoint:
    """What a folder with both would hold."""
    checkpoint = make_checkpoint(model, "tiny with next-token layers")
    checkpoint.config["mtp_num_hidden_layers"] = len(layers.layers)
    for name, weight in layers.state_dict().items():
        checkpoint.arrays[f"mtp.{name}"] = weight.numpy(force=True)
    return checkpoint


def random_pair(seed: int = 0, **changes: object) -> tuple[PreTrainedModel, NextTokenLayers]:
    """A model and layers of random weights."""
    torch.manual_seed(seed)
    model = random_model(config(**changes), seed)
    layers = NextTokenLayers(model.config).eval()
    with torch.no_grad():
        for name, weight in layers.named_parameters():
            scale = 0.2 if "norm" in name else 1.5 / weight.shape[-1] ** 0.5
            weight.copy_(scale * torch.randn(weight.shape))
    return model, layers


def sentences(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Texts [count, length] of a small language: runs of numbers that go up by one of five steps,
    with another step now and then."""
    texts = np.empty((count, length), np.int64)
    value, step = rng.integers(0, 60, count), rng.integers(1, 6, count)
    for place in range(length):
        texts[:, place] = value
        step = np.where(rng.random(count) < 0.04, rng.integers(1, 6, count), step)
        value = (value + step) % 60
    return texts


@cache
def trained() -> TinyCheckpoint:
    """A model of that language and its next-token layers, trained together for some seconds."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # So small a model is slower on more, and much slower on busy cores.
    model = random_model(config()).train()
    layers = NextTokenLayers(model.config)
    rng = np.random.default_rng(0)
    optimiser = torch.optim.AdamW([*model.parameters(), *layers.parameters()], lr=5e-3)
    for _ in range(STEPS):
        texts = torch.from_numpy(sentences(rng, 24, 35))
        rows = model.model(texts[:, :32]).last_hidden_state
        loss = torch.zeros(())
        for depth in range(3):  # The model itself, its next-token layers, and they once more.
            logits = model.lm_head(rows).transpose(1, 2)
            loss = loss + functional.cross_entropy(logits, texts[:, depth + 1 :][:, :32])
            rows = layers(model, texts[:, depth + 1 :][:, :32], rows)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.set_num_threads(threads)
    return with_layers(model.eval(), layers.eval())
