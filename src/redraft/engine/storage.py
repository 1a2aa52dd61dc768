"""What lies in the pages: the keys and values of all sequences.

Shapes: N pages of P positions, n pages of one sequence, T positions of one forward, S positions of one sequence,
G key-value heads, D head width.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from redraft.engine.pages import page_length
from redraft.errors import InvalidInput
from redraft.model.config import ModelConfig


def page_bytes(config: ModelConfig, block_length: int, dtype: torch.dtype) -> int:
    """Bytes of one page: keys and values of all layers."""
    width = config.num_key_value_heads * config.head_dim
    return config.num_hidden_layers * 2 * page_length(block_length) * width * dtype.itemsize


class PageStorage:
    """Keys and values of all pages. data: [layers, 2 (keys, values), N, P, G, D].

    A position that its sequence hasn't written holds what an earlier sequence left there, NaN included: attention must
    leave such positions out, not weigh them by zero.
    """

    def __init__(
        self, config: ModelConfig, count: int, block_length: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.page_length = page_length(block_length)
        shape = (config.num_hidden_layers, 2, count, self.page_length, config.num_key_value_heads, config.head_dim)
        self.count = count
        try:
            self.data = _zeros(shape, device, dtype)
        except (RuntimeError, MemoryError, ValueError) as error:  # torch's out-of-memory errors are RuntimeErrors
            size = count * page_bytes(config, block_length, dtype) / 2**30
            raise InvalidInput(f"pages={count} take {size:.1f} GiB on {device}; ask for fewer ({error})") from None
        self._flat = self.data.flatten(2, 3)

    def write(self, layer: int, slots_T: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """The caller has made sure, once a forward, that the pages are its own (`PagePool.require_writable`)."""
        self._flat[layer, 0, slots_T], self._flat[layer, 1, slots_T] = k_TGD, v_TGD

    def read(self, layer: int, pages: int | Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, D] of the first `length` positions of the sequence with these pages: int64 [n], which
        are copied, or the first of pages that lie one after another, which are not."""
        if isinstance(pages, int):
            first = pages * self.page_length
            return self._flat[layer, 0, first : first + length], self._flat[layer, 1, first : first + length]
        pair = self.data[layer].index_select(1, pages).flatten(1, 2)
        return pair[0, :length], pair[1, :length]

    def whole(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [N * P, G, D] of all pages, not copied."""
        return self._flat[layer, 0], self._flat[layer, 1]

    def clear(self, slots_T: Tensor) -> None:
        """Zeros at these places, in all layers."""
        self._flat.index_fill_(2, slots_T, 0)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; those of the CPU take memory page by page as they are written, where `torch.zeros` takes all at once."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
