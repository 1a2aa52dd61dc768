"""Mask to token: which masked positions a step fills (LLaDA2.1 report, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas


@dataclass(frozen=True, slots=True)
class Draft:
    """threshold: drafted when the confidence is strictly above it. min_unmask: filled a step at least, the most
    confident first (ties: lowest position), so that every step with masks makes progress."""

    threshold: float
    min_unmask: int = 1

    def choose(self, canvas: Canvas, candidates: Candidates) -> np.ndarray:
        """bool [L]: positions to fill."""
        chosen = canvas.masked & (candidates.prob > self.threshold)
        if chosen.sum() >= self.min_unmask or canvas.filled:
            return chosen
        order = np.argsort(np.where(canvas.masked, -candidates.prob, np.inf), kind="stable")
        chosen = np.zeros_like(canvas.masked)
        chosen[order[: self.min_unmask]] = True
        return chosen & canvas.masked
