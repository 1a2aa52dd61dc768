"""The canvas: one block while it is being written, and what a step changed on it.

L is the block length. Arrays of a canvas are never written in place: a step makes a new canvas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from redraft.decoding.logprobs import Logprobs
from redraft.types import TokenLogprob


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """One block of one sequence.

    block: index of the block, counted from the start of the sequence.
    tokens: int64 [L]. masked: bool [L], not drafted yet; the canvas's own state, never a comparison with the mask
    id, so a prompt may hold that id. prompt: bool [L], never changed. confidence: float64 [L], that of a position's
    last write (1 for the prompt, 0 while masked). step: steps taken; post_steps: those that began without a mask.
    logprobs: those of each position's last write, when the request asked for them.
    """

    block: int
    tokens: np.ndarray
    masked: np.ndarray
    prompt: np.ndarray
    confidence: np.ndarray
    step: int = 0
    post_steps: int = 0
    logprobs: Logprobs | None = None

    @classmethod
    def blank(
        cls, block: int, length: int, mask_id: int, prompt: Sequence[int] = (), *, logprobs: int | None = None
    ) -> Canvas:
        """A block of masks after the part of the prompt that reaches into it. logprobs: as in `SamplingParams`."""
        tokens = np.full(length, mask_id, dtype=np.int64)
        tokens[: len(prompt)] = prompt
        given = np.arange(length) < len(prompt)
        kept = None if logprobs is None else Logprobs.blank(length, logprobs)
        return cls(block, tokens, ~given, given, given.astype(np.float64), logprobs=kept)

    @classmethod
    def joined(cls, canvases: Sequence[Canvas]) -> Canvas:
        """Neighbouring blocks as one large block that has taken no step yet."""
        kept = [canvas.logprobs for canvas in canvases if canvas.logprobs is not None]
        return cls(
            canvases[0].block,
            tokens=np.concatenate([canvas.tokens for canvas in canvases]),
            masked=np.concatenate([canvas.masked for canvas in canvases]),
            prompt=np.concatenate([canvas.prompt for canvas in canvases]),
            confidence=np.concatenate([canvas.confidence for canvas in canvases]),
            logprobs=Logprobs.joined(kept) if kept else None,
        )

    def split(self, canvases: Sequence[Canvas]) -> list[Canvas]:
        """The blocks that were joined, as they are now: with the steps of both."""
        parts, start = [], 0
        for canvas in canvases:
            here = slice(start, start + len(canvas.tokens))
            parts.append(
                replace(
                    canvas,
                    tokens=self.tokens[here],
                    confidence=self.confidence[here],
                    step=canvas.step + self.step,
                    post_steps=canvas.post_steps + self.post_steps,
                    logprobs=self.logprobs and self.logprobs.part(here),
                )
            )
            start = here.stop
        return parts

    @property
    def filled(self) -> bool:
        """No mask is left."""
        return not self.masked.any()

    @property
    def token_logprobs(self) -> list[TokenLogprob]:
        """Those of the generated positions, in order; [] when none were asked for."""
        start = int(self.prompt.sum())
        return [] if self.logprobs is None else self.logprobs.listed(self.tokens, start)

    def write(
        self, where: np.ndarray, tokens: np.ndarray, confidence: np.ndarray, logprobs: Logprobs | None = None
    ) -> Canvas:
        """The canvas after one step that puts `tokens` at the positions `where` (bool [L]). Log-probabilities are
        kept when both the canvas and the step have them."""
        return replace(
            self,
            tokens=np.where(where, tokens, self.tokens),
            masked=self.masked & ~where,
            confidence=np.where(where, confidence, self.confidence),
            step=self.step + 1,
            post_steps=self.post_steps + self.filled,
            logprobs=self.logprobs and logprobs and self.logprobs.write(where, logprobs),
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

    def part(self, start: int, stop: int) -> Change:
        """What happened at the positions from `start` to `stop`, counted from `start`."""
        here = range(start, stop)
        return Change(
            tuple(at - start for at in self.drafted if at in here),
            {at - start: old for at, old in self.edited.items() if at in here},
            tuple(at - start for at in self.deleted if at in here),
            tuple(at - start for at in self.inserted if at in here),
        )

    def __bool__(self) -> bool:
        return bool(self.drafted or self.edited or self.deleted or self.inserted)
