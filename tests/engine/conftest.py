"""Small random networks, a scripted one, and the tiny tokenizer of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2

MASK, EOS = 31, 30


def config(**changes: Any) -> ModelConfig:
    small: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "moe_intermediate_size": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "max_position_embeddings": 512,
        "mask_token_id": MASK,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }
    return ModelConfig(**small | changes)


@cache
def network(seed: int, dtype: torch.dtype = torch.float64, **changes: Any) -> LLaDA2:
    """A random network whose logits are wide enough that confidences fall on both sides of the usual thresholds."""
    torch.manual_seed(seed)
    model = LLaDA2(config(**changes), dtype=dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "norm" not in name:
            wide = 1.5 if name.startswith(("lm_head", "word_embeddings")) else 0.4
            tensor.data = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype) * wide
    return model


@pytest.fixture(scope="session")
def tiny() -> Callable[..., LLaDA2]:
    return network


class Scripted(nn.Module):
    """A network whose logits are a function of the whole forward's tokens and positions; it keeps the length of every
    forward, and how many positions the head was asked for."""

    def __init__(self, script: Callable[[list[int], list[int]], Sequence[Sequence[float]] | Tensor], **changes: Any):
        super().__init__()
        self.config = config(**changes)
        self.script = script
        self.lengths: list[int] = []
        self.headed: list[int] = []
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, pools: Tensor | None = None) -> Tensor:
        self.lengths.append(tokens.shape[1])
        return torch.as_tensor(self.script(tokens[0].tolist(), positions[0].tolist()), dtype=torch.float32)[None]

    def head(self, hidden: Tensor) -> Tensor:
        self.headed.append(hidden.shape[0])
        return hidden


@pytest.fixture(scope="session")
def scripted() -> type[Scripted]:
    return Scripted
