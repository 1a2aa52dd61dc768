"""What an `attention_mask` of the transformers interface means here.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.errors import InvalidInput
from redraft.model.attention import block_causal_mask


def positions_from_mask(attention_mask: Tensor | None, tokens_BT: Tensor) -> Tensor:
    """int64 [B, T]: positions counted from each sequence's first real token, so that blocks start there however the
    row is padded. Padding gets a position too, which nothing sees."""
    if attention_mask is None or attention_mask.ndim == 4:
        return torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    return (checked_padding(attention_mask, tokens_BT).long().cumsum(dim=1) - 1).clamp(min=0)


def attention_pattern(attention_mask: Tensor | None, positions_BT: Tensor, block_length: int) -> Tensor:
    """bool [B, 1, T, T], True where a query (row) may attend.

    attention_mask: None, block-causal; [B, T] of 1 (token) and 0 (padding), block-causal among the tokens, never full
    or token-causal; [B or 1, 1, T, T], the exact pattern: bool, or additive with 0 and -inf (or the dtype's minimum).
    A query that may see nothing, such as left padding, sees itself, so that no NaN arises.
    """
    count = positions_BT.shape[1]
    if attention_mask is not None and attention_mask.ndim == 4:
        allowed = _exact(attention_mask, positions_BT)
    else:
        allowed = block_causal_mask(positions_BT, positions_BT, block_length).unsqueeze(1)
        if attention_mask is not None:
            allowed = allowed & checked_padding(attention_mask, positions_BT)[:, None, None, :]
    blind = ~allowed.any(dim=-1, keepdim=True)
    return allowed | (blind & torch.eye(count, dtype=torch.bool, device=allowed.device))


def checked_padding(attention_mask: Tensor, like_BT: Tensor) -> Tensor:
    """bool [B, T], True at real tokens."""
    if attention_mask.shape != like_BT.shape:
        raise InvalidInput(
            f"attention_mask must be of the tokens' shape {list(like_BT.shape)} (or 4-D), "
            f"got {list(attention_mask.shape)}"
        )
    if not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise InvalidInput("attention_mask must hold 1 (token) and 0 (padding) only when it is 2-D")
    return attention_mask.bool()


def _exact(mask: Tensor, positions_BT: Tensor) -> Tensor:
    rows, count = positions_BT.shape
    if mask.shape not in ((1, 1, count, count), (rows, 1, count, count)):
        raise InvalidInput(
            f"attention_mask must be [{rows} or 1, 1, {count}, {count}] when it is 4-D, got {list(mask.shape)}"
        )
    if mask.dtype == torch.bool:
        return mask
    allowed = mask == 0
    lowest = torch.finfo(mask.dtype).min if mask.is_floating_point() else torch.iinfo(mask.dtype).min
    if not (allowed | (mask <= lowest)).all():
        # A 0/1 mask added to scores would let a position see what it must not: its meaning is not clear.
        raise InvalidInput("attention_mask must be bool, or hold 0 and -inf only, when it is 4-D")
    return allowed
