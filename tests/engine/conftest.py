"""Small random networks, a scripted one, and the tiny tokenizer of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from tests.tiny import tiny_config, tiny_model
from torch import Tensor, nn

from redraft.model.network import LLaDA2


@pytest.fixture(scope="session")
def tiny() -> Callable[..., LLaDA2]:
    return cache(tiny_model)


class Scripted(nn.Module):
    """A network whose logits are a function of the whole forward's tokens and positions; it keeps the length of every
    forward, and how many positions the head was asked for."""

    def __init__(self, script: Callable[[list[int], list[int]], Sequence[Sequence[float]] | Tensor], **changes: Any):
        super().__init__()
        self.config = tiny_config(**changes)
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
