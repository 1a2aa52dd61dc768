"""From logits to candidates: one proposed token a position, with its confidence (spec/decoding.md, "Candidates").

Shapes: L positions of a block, N of them masked, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.decoding.canvas import Canvas
from redraft.types import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """token: int64 [L]. prob: float [L], softmax of the raw logits at temperature 1 over all ids, of that token.
    finite: bool [L], whether every logit of the position is."""

    token: np.ndarray
    prob: np.ndarray
    finite: np.ndarray


@dataclass(frozen=True, slots=True)
class Selection:
    """How candidates are chosen. banned: ids that are never proposed (the mask id and other control ids).
    temperature 0 is greedy; else drafts are drawn, keyed by (seed, choice, block, step, position)."""

    banned: tuple[int, ...]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice: int = 0

    @classmethod
    def of(cls, params: SamplingParams, banned: tuple[int, ...], *, seed: int = 0, choice: int = 0) -> Selection:
        return cls(banned, params.temperature, params.top_k, params.top_p, seed, choice)


def select(logits_LV: Tensor, canvas: Canvas, selection: Selection) -> Candidates:
    """Candidates of every position of one block.

    Drafts are drawn when a temperature is set; drafted positions always propose the argmax, since redrawing a
    settled token would keep a block from converging. Ties go to the lowest id.
    """
    banned = torch.tensor(selection.banned, dtype=torch.int64, device=logits_LV.device)
    allowed_LV = logits_LV.index_fill(-1, banned, -torch.inf)
    token_L = allowed_LV.argmax(-1)
    if selection.temperature > 0 and not canvas.filled:
        where = np.flatnonzero(canvas.masked)
        uniform = uniforms(selection.seed, selection.choice, canvas.block, canvas.step, len(canvas.tokens))[where]
        rows = torch.from_numpy(where).to(logits_LV.device)
        token_L[rows] = draw(allowed_LV[rows], torch.from_numpy(uniform).to(logits_LV.device), selection)
    prob_L = (logits_LV.gather(-1, token_L[:, None])[:, 0] - logits_LV.logsumexp(-1)).exp()
    finite_L = logits_LV.isfinite().all(-1)
    return Candidates(token_L.cpu().numpy(), prob_L.cpu().numpy(), finite_L.cpu().numpy())


def uniforms(seed: int, choice: int, block: int, step: int, length: int) -> np.ndarray:
    """float64 [length] in [0, 1): the draws of one step, a pure function of the arguments (Philox 4x64, counter based:
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), so batching and restarts replay them."""
    key = np.array([seed, choice], dtype=np.uint64)
    counter = np.array([0, 0, step, block], dtype=np.uint64)
    bits = np.random.Philox(counter=counter, key=key).random_raw(length)
    return (bits >> np.uint64(11)) * 2.0**-53


def draw(logits_NV: Tensor, uniform_N: Tensor, selection: Selection) -> Tensor:
    """int64 [N]: tokens drawn by inverse CDF in float64, after temperature, top-k, then top-p (the smallest set whose
    mass reaches it), in descending order with ties by lowest id."""
    # Sorted before anything is rounded, or almost equal logits could change places.
    logits_NV, ids_NV = logits_NV.double().sort(dim=-1, descending=True, stable=True)
    # Subtracting the maximum first keeps a tiny temperature from overflowing.
    scaled_NV = (logits_NV - logits_NV[:, :1]) / selection.temperature
    if selection.top_k:
        scaled_NV = scaled_NV[:, : selection.top_k]
    prob_NV = scaled_NV.softmax(-1)
    if selection.top_p < 1:
        before_NV = prob_NV.cumsum(-1) - prob_NV
        prob_NV = prob_NV.masked_fill(before_NV >= selection.top_p, 0.0)
    mass_NV = prob_NV.cumsum(-1)
    pick_N = (mass_NV <= uniform_N[:, None] * mass_NV[:, -1:]).sum(-1)
    last_N = (prob_NV > 0).sum(-1) - 1  # rounding could carry a draw past the last token of positive mass
    return ids_NV.gather(-1, pick_N.minimum(last_N)[:, None])[:, 0]
