"""What lies in the pages: the keys and values of all sequences.

Shapes: N pages of P positions, n pages of one sequence, T positions of one forward, S positions of one sequence,
G key-value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        try:
            self.data = torch.zeros(shape, device=device, dtype=dtype)
        except RuntimeError as error:  # torch's out-of-memory errors are RuntimeErrors
            size = count * page_bytes(config, block_length, dtype) / 2**30
            raise InvalidInput(f"pages={count} take {size:.1f} GiB on {device}; ask for fewer ({error})") from None
        self._flat = self.data.flatten(2, 3)

    def slots(self, pages: Sequence[int], start: int, stop: int) -> Tensor:
        """Where the positions start..stop of a sequence with these pages lie: int64 [T], page * P + place in it."""
        positions_T = torch.arange(start, stop)
        pages_T = torch.tensor(pages, dtype=torch.int64)[positions_T // self.page_length]
        return (pages_T * self.page_length + positions_T % self.page_length).to(self.data.device)

    def write(self, layer: int, slots_T: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """The caller has made sure, once a forward, that the pages are its own (`PagePool.require_writable`)."""
        self._flat[layer, 0, slots_T], self._flat[layer, 1, slots_T] = k_TGD, v_TGD

    def gather(self, layer: int, pages_n: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, D] of the first `length` positions of the sequence with these pages: int64 [n]."""
        pair = self.data[layer].index_select(1, pages_n).flatten(1, 2)
        return pair[0, :length], pair[1, :length]
