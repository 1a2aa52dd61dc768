"""The exact block-causal cache of one sequence: keys and values of its committed positions.

Shapes: T positions of one forward, S positions the cache has room for, H query heads, G key-value heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.model.attention import attention, block_causal_mask
from redraft.model.config import ModelConfig

# Blocks shorter than this attend in strips of about this many positions under a small mask.
STRIP = 32


class KeyValueCache:
    """Room for `capacity` positions, of which the first `length` are committed.

    A forward writes the keys and values of its own positions behind the committed ones, where the next forward
    overwrites them unless `length` has moved past them. The prefix is never copied.
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
    """Queries low..high of a forward; mask: bool [high - low, start + high], or None when they see all of it."""

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
