"""The canvas: one block while it is being written, and what a step changed on it.

L is the block length. Arrays of a canvas are never written in place: a step makes a new canvas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """One block of one sequence.

    block: index of the block, counted from the start of the sequence.
    tokens: int64 [L]. masked: bool [L], not drafted yet; the canvas's own state, never a comparison with the mask
    id, so a prompt may hold that id. prompt: bool [L], never changed. confidence: float64 [L], that of a position's
    last write (1 for the prompt, 0 while masked). step: steps taken; post_steps: those that began without a mask.
    """

    block: int
    tokens: np.ndarray
    masked: np.ndarray
    prompt: np.ndarray
    confidence: np.ndarray
    step: int = 0
    post_steps: int = 0

    @classmethod
    def blank(cls, block: int, length: int, mask_id: int, prompt: Sequence[int] = ()) -> Canvas:
        """A block of masks after the part of the prompt that reaches into it."""
        tokens = np.full(length, mask_id, dtype=np.int64)
        tokens[: len(prompt)] = prompt
        given = np.arange(length) < len(prompt)
        return cls(block, tokens, ~given, given, given.astype(np.float64))

    @property
    def filled(self) -> bool:
        """No mask is left."""
        return not self.masked.any()

    def write(self, where: np.ndarray, tokens: np.ndarray, confidence: np.ndarray) -> Canvas:
        """The canvas after one step that puts `tokens` at the positions `where` (bool [L])."""
        return replace(
            self,
            tokens=np.where(where, tokens, self.tokens),
            masked=self.masked & ~where,
            confidence=np.where(where, confidence, self.confidence),
            step=self.step + 1,
            post_steps=self.post_steps + self.filled,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two states of a canvas, as positions inside the block; `edited` maps to the old token."""

    drafted: tuple[int, ...] = ()
    edited: Mapping[int, int] = field(default_factory=dict)
    deleted: tuple[int, ...] = ()
    inserted: tuple[int, ...] = ()

    @classmethod
    def between(cls, before: Canvas, after: Canvas) -> Change:
        drafted = np.flatnonzero(before.masked & ~after.masked)
        edited = np.flatnonzero(~before.masked & (before.tokens != after.tokens))
        return cls(tuple(drafted.tolist()), dict(zip(edited.tolist(), before.tokens[edited].tolist(), strict=True)))

    def __bool__(self) -> bool:
        return bool(self.drafted or self.edited or self.deleted or self.inserted)
