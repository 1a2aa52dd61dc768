"""From hidden states to candidates, over the blocks of many requests at once (spec/decoding.md, "Candidates").

Bias and penalties shape the distribution, which gives the choice, its confidence and its log-probability. Temperature
and filters change only what a draft is drawn from. So a threshold means the same with and without sampling.

Shapes: N rows (wanted positions of all asks), R rows of one chunk, C hidden, V vocabulary, K alternatives, L positions
of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from redraft.decoding.candidates import Ask, Candidates
from redraft.decoding.logprobs import Logprobs
from redraft.decoding.rows import Rows
from redraft.decoding.sampling import draw, ranked

HEAD_ROWS = 256  # rows whose logits exist at once
RANK_ROWS = 32  # rows that are ranked at once, in several copies and in float64
SUM_LOGITS = 1 << 19  # logits that are exponentiated at once on a CPU: what fits its cache
RUN = 128  # neighbouring logits that are one step of a maximum


@torch.inference_mode()
def select(
    head: Callable[[Tensor], Tensor], hidden_NC: Tensor, asks: Sequence[Ask], *, rows: int = HEAD_ROWS
) -> list[Candidates]:
    """Candidates of each ask's block, in order; a row depends on its own ask alone.

    head: logits [R, V] of hidden states [R, C], float32 or float64, in a tensor that may be written into. hidden_NC:
    the wanted positions of the first ask, then of the next, and so on. rows: how many the head reads at once.

    Greedy proposes the argmax. Drafts are drawn when a temperature is set; drafted positions always propose the argmax.
    Ties go to the lowest id.
    """
    plan = Rows.of(asks)
    if len(hidden_NC) != plan.start[-1]:
        raise ValueError(f"hidden states of {plan.start[-1]} wanted positions are needed, got {len(hidden_NC)}")
    if not len(hidden_NC):
        return [_candidates(ask) for ask in asks]
    chunks = [_choose(head(hidden_NC[low : low + rows]), plan, low) for low in range(0, len(hidden_NC), rows)]
    columns = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    return [
        _candidates(ask, *(column[first:last] for column in columns))
        for ask, first, last in zip(asks, plan.start[:-1], plan.start[1:], strict=True)
    ]


def _choose(logits_RV: Tensor, plan: Rows, low: int) -> list[np.ndarray]:
    """Token [R], confidence [R], whether all logits are finite [R], log-probability [R], and [R, K] ids and
    log-probabilities of alternatives, of the rows from `low` on."""
    high, device = low + len(logits_RV), logits_RV.device
    least_R = logits_RV.amin(-1)
    for entries in plan.added:
        if part := entries.between(low, high, device):
            row, ids, value = part
            logits_RV[row, ids] += value.to(logits_RV.dtype)
    total_R = _logsumexp(logits_RV)
    finite_R = least_R.isfinite() & total_R.isfinite()  # both hand a NaN on; the sum shows +inf, the least -inf
    if part := plan.banned.between(low, high, device):
        logits_RV[part] = -torch.inf

    token_R = _argmax(logits_RV)
    for entries in plan.drawn:
        if part := entries.between(low, high, device):
            for row, *settings in _strips(part):
                token_R[row] = draw(_clean(logits_RV, finite_R, row), *settings)
    logprob_R = logits_RV.gather(-1, token_R[:, None])[:, 0] - total_R

    ids_RK = token_R.new_zeros(len(logits_RV), plan.alternatives)
    value_RK = total_R.new_full((len(logits_RV), plan.alternatives), -torch.inf)
    if part := plan.listed.between(low, high, device):
        for (row,) in _strips(part):
            best, ids = ranked(_clean(logits_RV, finite_R, row), plan.alternatives)
            ids_RK[row, : ids.shape[1]] = ids
            value_RK[row, : ids.shape[1]] = best - total_R[row, None]
    found = (token_R, logprob_R.exp(), finite_R, logprob_R.double(), ids_RK, value_RK.double())
    return [tensor.cpu().numpy() for tensor in found]


def _logsumexp(logits_RV: Tensor) -> Tensor:
    rows = max(1, SUM_LOGITS // logits_RV.shape[-1]) if logits_RV.device.type == "cpu" else len(logits_RV)
    return torch.cat([part.logsumexp(-1) for part in logits_RV.split(rows)])


def _argmax(logits_RV: Tensor) -> Tensor:
    """int64 [R], ties by lowest id. By the maxima of runs of neighbours: torch's argmax reads one number at a time on a
    CPU, its amax many."""
    if logits_RV.shape[-1] % RUN:
        return logits_RV.argmax(-1)
    runs_RMN = logits_RV.unflatten(-1, (-1, RUN))
    run_R1 = runs_RMN.amax(-1).argmax(-1, keepdim=True)
    best_RN = runs_RMN.take_along_dim(run_R1[:, :, None], 1)[:, 0]
    return run_R1[:, 0] * RUN + best_RN.argmax(-1)


def _strips(columns: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(column.split(RANK_ROWS) for column in columns), strict=True)


def _clean(logits_RV: Tensor, finite_R: Tensor, row: Tensor) -> Tensor:
    """These rows; zeros in the place of one that isn't finite, which has no order (its request ends in an error)."""
    return logits_RV[row].masked_fill(~finite_R[row, None], 0.0)


def _candidates(ask: Ask, *found: np.ndarray) -> Candidates:
    """The whole block's candidates: those found at the wanted positions, its own state elsewhere."""
    canvas, count = ask.canvas, ask.selection.logprobs
    state = [canvas.tokens, canvas.confidence, np.ones(len(canvas.tokens), dtype=bool)]
    if count is not None:
        kept = canvas.logprobs or Logprobs.blank(len(canvas.tokens), count)
        state += [kept.token, kept.ids, kept.values]
    for index, new in enumerate(found[: len(state)]):
        new = new[:, :count] if new.ndim == 2 else new
        state[index] = state[index].astype(new.dtype)  # a copy, as wide as what thresholds are compared with
        state[index][ask.wanted] = new
    return Candidates(state[0], state[1], state[2], None if count is None else Logprobs(*state[3:]))
