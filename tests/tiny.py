"""The tiny random network of all tests: one dense layer, then mixtures of experts in groups."""

from __future__ import annotations

from typing import Any

import torch

from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2


def tiny_config(vocab_size: int = 32, **changes: Any) -> ModelConfig:
    """The mask is the last id, and the one before ends a text and pads it."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "moe_intermediate_size": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "mask_token_id": vocab_size - 1,
        "eos_token_id": vocab_size - 2,
        "pad_token_id": vocab_size - 2,
    }
    return ModelConfig(**sizes | changes)


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, wide: float = 1.5, **changes: Any) -> LLaDA2:
    """In evaluation mode, with expert biases that matter. The numbers are the same in every dtype, but for rounding.

    wide: standard deviation of the embeddings and the head; by default confidences fall on both sides of the usual
    thresholds.
    """
    model = LLaDA2(tiny_config(**changes), dtype=dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if "norm" not in name:
            std = wide if name.startswith(("lm_head", "word_embeddings")) else 0.4
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * std)
    return model
