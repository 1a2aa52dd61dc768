"""The draw: a token from filtered logits, by the inverse CDF, with numbers that any schedule repeats.

Shapes: N rows, V vocabulary, K ranks kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def uniforms(seed: int, choice: int, block: int, step: int, length: int) -> np.ndarray:
    """float64 [length] in [0, 1): the draws of one step, a pure function of the arguments (Philox 4x64, counter based:
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), so batching and restarts replay them."""
    key = np.array([seed, choice], dtype=np.uint64)
    counter = np.array([0, 0, step, block], dtype=np.uint64)
    bits = np.random.Philox(counter=counter, key=key).random_raw(length)
    return (bits >> np.uint64(11)) * 2.0**-53


def draw(
    logits_NV: Tensor, uniform_N: Tensor, temperature_N: Tensor, top_p_N: Tensor, top_k_N: Tensor | None = None
) -> Tensor:
    """int64 [N]: tokens drawn by inverse CDF in float64, after temperature, top-k, then top-p (the smallest set whose
    mass reaches it), in descending order with ties by lowest id.

    uniform_N in [0, 1), temperature_N above 0, top_p_N in (0, 1]: float64. top_k_N: int64, at least 1; None: no row
    is limited, which costs a whole sort. No logit may be NaN or +inf; -inf is never drawn.
    """
    depth = logits_NV.shape[-1] if top_k_N is None else int(top_k_N.max())
    # Ranked before anything is rounded, or almost equal logits could change places.
    logits_NK, ids_NK = ranked(logits_NV, depth)
    # Subtracting the maximum first keeps a tiny temperature from overflowing.
    scaled_NK = (logits_NK.double() - logits_NK[:, :1].double()) / temperature_N[:, None]
    if top_k_N is not None:
        beyond_NK = torch.arange(scaled_NK.shape[-1], device=scaled_NK.device) >= top_k_N[:, None]
        scaled_NK = scaled_NK.masked_fill(beyond_NK, -torch.inf)
    weight_NK = scaled_NK.exp()
    # Running sums and no normalisation: what other rows are ranked to can't change a row's numbers.
    mass_NK = weight_NK.cumsum(-1)
    cut_NK = (mass_NK - weight_NK >= top_p_N[:, None] * mass_NK[:, -1:]) & (top_p_N[:, None] < 1)
    last_N1 = ((weight_NK > 0) & ~cut_NK).sum(-1, keepdim=True).clamp(min=1) - 1
    pick_N1 = (mass_NK <= uniform_N[:, None] * mass_NK.gather(-1, last_N1)).sum(-1, keepdim=True)
    return ids_NK.gather(-1, pick_N1.minimum(last_N1))[:, 0]


def ranked(logits_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest logits of each row (all of them when there are fewer), largest first, ties by lowest id, and
    their ids: [N, K] and int64 [N, K]. No logit may be NaN. Unlike `topk`, ties have an order; unlike `sort`, a few
    of many cost a pass over the row."""
    if count >= logits_NV.shape[-1]:
        return logits_NV.sort(dim=-1, descending=True, stable=True)
    least_N1 = logits_NV.topk(count, dim=-1).values[:, -1:]
    above_NV, level_NV = logits_NV > least_N1, logits_NV == least_N1
    room_N1 = count - above_NV.sum(-1, keepdim=True)
    chosen_NV = above_NV | (level_NV & (level_NV.cumsum(-1, dtype=torch.int32) <= room_N1))
    ids_NK = chosen_NV.nonzero()[:, 1].view(-1, count)
    logits_NK, order_NK = logits_NV.gather(-1, ids_NK).sort(dim=-1, descending=True, stable=True)
    return logits_NK, ids_NK.gather(-1, order_NK)
