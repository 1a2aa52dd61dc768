"""The spine's decoder: one sequence, its keys and values in one piece of memory. What the engine is compared with.

`CachedContext` is what `redraft.engine.generate` reads; the block loop, the policies and the network are the package's.
No pages, no scheduler, no neighbours: the least that an exact cache needs.

Shapes: T positions of one forward, W rows of a strip, S positions the cache has room for, H query heads,
G key-value heads, D head width, C hidden, L block length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.model.attention import attention, block_causal_mask
from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2

PREFILL_CHUNK = 1024
# Blocks shorter than this attend in strips of about this many positions under a small mask.
STRIP = 32


class CachedContext:
    """A `Context` (redraft.engine.context) of at most `capacity` positions.

    Committed tokens wait until a forward needs their keys and values, and are then read by the same forward as the next
    block's first step; only what exceeds `prefill_chunk` positions is read apart. A block that is committed as the last
    forward saw it has its keys and values already.
    """

    def __init__(self, model: LLaDA2, capacity: int, block_length: int, *, prefill_chunk: int = PREFILL_CHUNK) -> None:
        self.prefill_forwards = 0
        self._model = model
        self._block_length = block_length
        self._chunk = max(1, prefill_chunk // block_length) * block_length
        self._cache = KeyValueCache(model.config, capacity, block_length, device=model.device, dtype=model.dtype)
        self._waiting = np.empty(0, dtype=np.int64)
        self._seen: np.ndarray | None = None

    def commit(self, tokens: np.ndarray) -> None:
        """Appends finished blocks: int64 [n * L]."""
        if self._seen is not None and np.array_equal(tokens, self._seen):
            self._cache.length += len(tokens)
        else:
            self._waiting = np.concatenate((self._waiting, tokens))
        self._seen = None

    @torch.inference_mode()
    def forward(self, tokens: np.ndarray) -> Tensor:
        """Hidden states [L, C] of the block that follows the committed ones: int64 [L]."""
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
        """Logits [..., V] of hidden states [..., C]."""
        return self._model.head(hidden)

    def _run(self, tokens: np.ndarray) -> Tensor:
        start, device = self._cache.length, self._model.device
        positions = torch.arange(start, start + len(tokens), device=device)[None]
        pools = positions // self._block_length if self._model.config.block_routing is not None else None
        attend = self._cache.attend(len(tokens))
        return self._model(torch.from_numpy(tokens).to(device)[None], positions, attend, pools)


class KeyValueCache:
    """Keys and values of one sequence: room for `capacity` positions, of which the first `length` are committed.

    A forward writes those of its own positions behind the committed ones, where the next forward overwrites them unless
    `length` has moved past them. The prefix is never copied.
    """

    def __init__(
        self, config: ModelConfig, capacity: int, block_length: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_hidden_layers, 1, config.num_key_value_heads, capacity, config.head_dim)
        self._keys = torch.empty(shape, device=device, dtype=dtype)
        self._values = torch.empty(shape, device=device, dtype=dtype)
        self._block_length = block_length
        self.length = 0

    def attend(self, count: int) -> CachedAttention:
        """The attention strategy of a forward over the `count` positions (whole blocks) after the committed ones."""
        block, start = self._block_length, self.length
        width = block * max(1, STRIP // block)
        positions = torch.arange(start + count, device=self._keys.device)
        strips = []
        for low in range(0, count, width):
            high = min(low + width, count)
            queries, keys = positions[start + low : start + high], positions[: start + high]
            # A single block sees all of its prefix and itself: no mask.
            mask = block_causal_mask(queries, keys, block) if high - low > block else None
            strips.append(Strip(low, high, mask))
        return CachedAttention(self._keys, self._values, start, tuple(strips))


@dataclass(frozen=True, slots=True)
class Strip:
    """Queries low..high of a forward. mask: bool [W, start + high], or None when they see all of it."""

    low: int
    high: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """Block-causal attention of new positions over the cache and themselves. keys, values: [layers, 1, G, S, D]."""

    keys: Tensor
    values: Tensor
    start: int
    strips: tuple[Strip, ...]

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        # Stored head-major, so that each head's keys lie together; handed over in the network's order.
        keys, values = self.keys[layer].transpose(1, 2), self.values[layer].transpose(1, 2)
        end = self.start + q_BTHD.shape[1]
        keys[:, self.start : end], values[:, self.start : end] = k_BTGD, v_BTGD
        outputs = []
        for strip in self.strips:
            seen = self.start + strip.high
            outputs.append(attention(q_BTHD[:, strip.low : strip.high], keys[:, :seen], values[:, :seen], strip.mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
