"""Attention strategies for plain forwards, and the block-causal mask (spec/model.md, "Attention between blocks").

A strategy is a callable `attend(layer, q, k, v) -> out` that the network hands each layer's rotated queries, keys
and values. Shapes: B sequences, T positions, H query heads, G key-value heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F


class Attend(Protocol):
    """q: [B, T, H, D]; k, v: [B, T, G, D]; returns [B, T, H, D]."""

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class MaskedAttention:
    """Attention of all positions among themselves. mask: bool, True where a query may attend, broadcastable to
    [B, H, T, T]; None for full attention."""

    mask: Tensor | None = None

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        return attention(q_BTHD, k_BTGD, v_BTGD, self.mask)


def attention(q_BTHD: Tensor, k_BSGD: Tensor, v_BSGD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Grouped-query attention, scale D**-0.5. mask: bool, broadcastable to [B, H, T, S]. Returns [B, T, H, D]."""
    out = F.scaled_dot_product_attention(
        q_BTHD.transpose(1, 2), k_BSGD.transpose(1, 2), v_BSGD.transpose(1, 2), attn_mask=mask, enable_gqa=True
    )
    return out.transpose(1, 2)


def block_causal_mask(positions_Q: Tensor, positions_K: Tensor, block_length: int) -> Tensor:
    """bool [..., Q, K]: a position sees its own and all earlier blocks. Positions count from the sequence's start."""
    return (positions_Q // block_length).unsqueeze(-1) >= (positions_K // block_length).unsqueeze(-2)
