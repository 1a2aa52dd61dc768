"""What a sequence has committed, and the forward of the block after it: with the cache, or by full recomputation.

L is the block length, C the hidden size, V the vocabulary. Both contexts give the same hidden
states; the uncached one is the oracle of the cached one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from redraft.engine.cache import KeyValueCache
from redraft.model.attention import Attend, MaskedAttention, block_causal_mask
from redraft.model.network import LLaDA2

PREFILL_CHUNK = 1024


class Context(Protocol):
    """prefill_forwards: forwards that only read committed tokens."""

    prefill_forwards: int

    def commit(self, tokens: np.ndarray) -> None:
        """Appends finished blocks: int64 [n * L]."""
        ...

    def forward(self, tokens: np.ndarray) -> Tensor:
        """Hidden states [L, C] of the block that follows the committed ones: int64 [L]."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., C]."""
        ...


class CachedContext:
    """Committed tokens wait until a forward needs their keys and values, and are then read by the same forward as
    the next block's first step; only what exceeds `prefill_chunk` positions is read apart. A block that is committed
    as the last forward saw it has its keys and values already. So no forward runs whose result nothing uses."""

    def __init__(self, model: LLaDA2, capacity: int, block_length: int, *, prefill_chunk: int = PREFILL_CHUNK) -> None:
        self.prefill_forwards = 0
        self._model = model
        self._block_length = block_length
        self._chunk = max(1, prefill_chunk // block_length) * block_length
        self._cache = KeyValueCache(model.config, capacity, block_length, device=model.device, dtype=model.dtype)
        self._waiting = np.empty(0, dtype=np.int64)
        self._seen: np.ndarray | None = None

    def commit(self, tokens: np.ndarray) -> None:
        if self._seen is not None and np.array_equal(tokens, self._seen):
            self._cache.length += len(tokens)
        else:
            self._waiting = np.concatenate((self._waiting, tokens))
        self._seen = None

    @torch.inference_mode()
    def forward(self, tokens: np.ndarray) -> Tensor:
        while len(self._waiting) > self._chunk:
            self._run(self._waiting[: self._chunk])
            self._cache.length += self._chunk
            self._waiting = self._waiting[self._chunk :]
            self.prefill_forwards += 1
        hidden = self._run(np.concatenate((self._waiting, tokens)))
        self._cache.length += len(self._waiting)
        self._waiting = self._waiting[:0]
        self._seen = tokens
        return hidden[0, -len(tokens) :]

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        return self._model.head(hidden)

    def _run(self, tokens: np.ndarray) -> Tensor:
        return run(self._model, tokens, self._cache.length, self._cache.attend(len(tokens)), self._block_length)


class UncachedContext:
    """Every forward reads the whole sequence again. Slow; the definition of what is right."""

    def __init__(self, model: LLaDA2, block_length: int) -> None:
        self.prefill_forwards = 0
        self._model = model
        self._block_length = block_length
        self._committed = np.empty(0, dtype=np.int64)

    def commit(self, tokens: np.ndarray) -> None:
        self._committed = np.concatenate((self._committed, tokens))

    @torch.inference_mode()
    def forward(self, tokens: np.ndarray) -> Tensor:
        whole = np.concatenate((self._committed, tokens))
        positions = torch.arange(len(whole), device=self._model.device)
        attend = MaskedAttention(block_causal_mask(positions, positions, self._block_length))
        return run(self._model, whole, 0, attend, self._block_length)[0, -len(tokens) :]

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        return self._model.head(hidden)


def run(model: LLaDA2, tokens: np.ndarray, start: int, attend: Attend, block_length: int) -> Tensor:
    """Hidden states [1, T, C] of the tokens int64 [T] at the positions from `start` on."""
    positions = torch.arange(start, start + len(tokens), device=model.device)[None]
    pools = positions // block_length if model.config.block_routing is not None else None
    return model(torch.from_numpy(tokens).to(model.device)[None], positions, attend, pools)
