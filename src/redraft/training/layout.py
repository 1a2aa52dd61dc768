"""The vectorised input `[x_0 ; x_t]`: one forward trains every block of every document (spec/training.md).

A row holds one document: its clean blocks, then `copies` noisy versions of the blocks that carry loss. Only what a
loss can reach is laid out: blocks without a supervised position get no noisy version, and clean blocks that no noisy
block sees are left out.

Shapes: B rows, S clean positions, M noisy copies, N noisy positions of one copy; rows are padded to whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from redraft.model.attention import attention
from redraft.types import Sample


@dataclass(frozen=True)
class Layout:
    """A batch of documents laid out for one forward.

    clean_BS, clean_position_BS: int64; target_BN, noisy_position_BN: int64, the true tokens of the noisy blocks and
    their positions in the document. supervised_BN: bool. clean_real_BS, noisy_real_BN: bool, False on padding.
    index: the samples' indices, which key their noise.
    """

    block_length: int
    copies: int
    clean_BS: Tensor
    clean_position_BS: Tensor
    clean_real_BS: Tensor
    target_BN: Tensor
    noisy_position_BN: Tensor
    noisy_real_BN: Tensor
    supervised_BN: Tensor
    index: tuple[int, ...]

    @property
    def positions_BT(self) -> Tensor:
        return torch.cat([self.clean_position_BS] + [self.noisy_position_BN] * self.copies, dim=1)

    @property
    def pools_BT(self) -> Tensor:
        """A routing pool for each block of each copy of each row, -1 for padding."""
        blocks = 1 + int(max(self.clean_position_BS.amax(), self.noisy_position_BN.amax())) // self.block_length
        row_B1 = torch.arange(len(self.index), device=self.clean_BS.device).unsqueeze(1) * (self.copies + 1) * blocks
        clean = (row_B1 + self.clean_position_BS // self.block_length).masked_fill(~self.clean_real_BS, -1)
        noisy = [
            (row_B1 + copy * blocks + self.noisy_position_BN // self.block_length).masked_fill(~self.noisy_real_BN, -1)
            for copy in range(1, self.copies + 1)
        ]
        return torch.cat([clean, *noisy], dim=1)

    def select(self, rows: list[int]) -> Layout:
        """The layout of some of the rows."""
        tensors = {name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, index=tuple(self.index[row] for row in rows), **tensors)

    def tokens_BT(self, noisy_BMN: Tensor) -> Tensor:
        """The network's input: the clean part, then every noisy copy."""
        return torch.cat((self.clean_BS, noisy_BMN.flatten(1)), dim=1)

    def noisy_part(self, hidden_BTC: Tensor) -> Tensor:
        """[B, M, N, C] of [B, T, C]."""
        return hidden_BTC[:, self.clean_BS.shape[1] :].unflatten(1, (self.copies, -1))


def lay_out(samples: Sequence[Sample], block_length: int, copies: int = 1) -> Layout:
    """Lays out documents whose length is a multiple of the block length and that hold a supervised position."""
    parts = [_document(sample, block_length) for sample in samples]
    clean = max(len(tokens) for tokens, _, _, _ in parts)
    noisy = max(len(target) for _, target, _, _ in parts)
    rows = len(samples)
    out = {
        "clean_BS": np.zeros((rows, clean), np.int64),
        "clean_real_BS": np.zeros((rows, clean), bool),
        "target_BN": np.zeros((rows, noisy), np.int64),
        "noisy_position_BN": np.zeros((rows, noisy), np.int64),
        "noisy_real_BN": np.zeros((rows, noisy), bool),
        "supervised_BN": np.zeros((rows, noisy), bool),
    }
    for row, (tokens, target, position, supervised) in enumerate(parts):
        out["clean_BS"][row, : len(tokens)] = tokens
        out["clean_real_BS"][row, : len(tokens)] = True
        out["target_BN"][row, : len(target)] = target
        out["noisy_position_BN"][row, : len(target)] = position
        out["noisy_real_BN"][row, : len(target)] = True
        out["supervised_BN"][row, : len(target)] = supervised
    out["clean_position_BS"] = np.tile(np.arange(clean), (rows, 1))
    tensors = {name: torch.from_numpy(array) for name, array in out.items()}
    return Layout(block_length, copies, index=tuple(sample.index for sample in samples), **tensors)


def _document(sample: Sample, block_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(clean tokens, noisy targets, noisy positions, noisy supervised) of one document."""
    noisy_blocks = np.flatnonzero(sample.supervised.reshape(-1, block_length).any(axis=1))
    position = (noisy_blocks[:, None] * block_length + np.arange(block_length)).ravel()
    clean = sample.tokens[: noisy_blocks[-1] * block_length]
    return clean, sample.tokens[position], position, sample.supervised[position]


class VectorisedAttention:
    """Clean blocks see clean blocks up to their own; a noisy block sees itself and the clean blocks before it.

    Two products instead of one masked [T, T]: no noisy copy ever meets another, so their scores are never computed.
    """

    def __init__(self, layout: Layout):
        length, copies = layout.block_length, layout.copies
        self.clean, self.copies = layout.clean_BS.shape[1], copies
        clean_block, noisy_block = layout.clean_position_BS // length, layout.noisy_position_BN // length
        causal = (clean_block.unsqueeze(2) >= clean_block.unsqueeze(1)) & layout.clean_real_BS.unsqueeze(1)
        self.clean_mask = (causal | _itself(self.clean, causal)).unsqueeze(1)
        earlier = (noisy_block.unsqueeze(2) > clean_block.unsqueeze(1)) & layout.clean_real_BS.unsqueeze(1)
        same = (noisy_block.unsqueeze(2) == noisy_block.unsqueeze(1)) & layout.noisy_real_BN.unsqueeze(1)
        same = same | _itself(layout.target_BN.shape[1], same)
        self.noisy_mask = torch.cat((earlier, same), dim=2).repeat_interleave(copies, dim=0).unsqueeze(1)

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        split = (self.clean, q_BTHD.shape[1] - self.clean)
        (q_clean, q_noisy), (k_clean, k_noisy), (v_clean, v_noisy) = (
            x.split(split, dim=1) for x in (q_BTHD, k_BTGD, v_BTGD)
        )
        keys = torch.cat((self._repeat(k_clean), self._copies(k_noisy)), dim=1)
        values = torch.cat((self._repeat(v_clean), self._copies(v_noisy)), dim=1)
        noisy = attention(self._copies(q_noisy), keys, values, self.noisy_mask)
        noisy = noisy.unflatten(0, (-1, self.copies)).flatten(1, 2)
        if not self.clean:
            return noisy
        return torch.cat((attention(q_clean, k_clean, v_clean, self.clean_mask), noisy), dim=1)

    def _copies(self, x: Tensor) -> Tensor:
        """[B * M, N, ...] of [B, M * N, ...]."""
        return x.unflatten(1, (self.copies, -1)).flatten(0, 1)

    def _repeat(self, x: Tensor) -> Tensor:
        """[B * M, S, ...] of [B, S, ...]."""
        return x if self.copies == 1 else x.repeat_interleave(self.copies, dim=0)


def _itself(length: int, like: Tensor) -> Tensor:
    """The diagonal: padding sees itself, so that no row of the softmax is empty."""
    return torch.eye(length, dtype=torch.bool, device=like.device)
