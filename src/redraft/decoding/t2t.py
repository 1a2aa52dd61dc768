"""Token to token: which drafted positions a step rewrites (LLaDA2.1 report, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas


@dataclass(frozen=True, slots=True)
class Edit:
    """threshold: rewritten when another token's confidence is strictly above it; 0 edits freely."""

    threshold: float

    def choose(self, canvas: Canvas, candidates: Candidates) -> np.ndarray:
        """bool [L]: positions to rewrite. The prompt and masks never are."""
        open_ = ~canvas.masked & ~canvas.prompt
        return open_ & (candidates.token != canvas.tokens) & (candidates.prob > self.threshold)
