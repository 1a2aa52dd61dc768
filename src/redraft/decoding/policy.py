"""The decoding policy: what one step does to a canvas, and when a block is done (spec/decoding.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.m2t import Draft
from redraft.decoding.t2t import Edit
from redraft.errors import NumericalError


@dataclass(frozen=True, slots=True)
class DraftAndEdit:
    """Drafts and edits from the same logits. edit: None switches editing off. max_post_steps: steps on a block that
    began without a mask, at most."""

    draft: Draft
    edit: Edit | None = None
    max_post_steps: int = 16

    def wanted(self, canvas: Canvas) -> np.ndarray:
        """int64 [W], rising: the positions that a step may write, and so the only ones whose candidates matter."""
        return np.flatnonzero(canvas.masked if self.edit is None else ~canvas.prompt)

    def step(self, canvas: Canvas, candidates: Candidates) -> tuple[Canvas, Change]:
        """Writes the candidates of all chosen positions; NumericalError when logits are not finite."""
        if not candidates.finite.all():
            where = f"position {np.argmin(candidates.finite)} from block {canvas.block} on, step {canvas.step}"
            raise NumericalError(f"logits are not finite at {where}; the weights or the dtype are at fault")
        chosen = self.draft.choose(canvas, candidates)
        if self.edit is not None:
            chosen = chosen | self.edit.choose(canvas, candidates)
        after = canvas.write(chosen, candidates.token, candidates.prob, candidates.logprobs)
        return after, Change.between(canvas, after)

    def post_steps_left(self, canvas: Canvas) -> int:
        """Steps that a block without masks may still take."""
        return max(0, self.max_post_steps - canvas.post_steps) if self.edit is not None else 0

    def done(self, canvas: Canvas, change: Change) -> bool:
        """Whether the block is finished after the step that led to `canvas` by `change`."""
        return canvas.filled and (not change or self.post_steps_left(canvas) == 0)
