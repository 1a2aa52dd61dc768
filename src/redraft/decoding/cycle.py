"""Cycle arithmetic: where a block that repeats itself would end, without running it (spec/decoding.md, "One block").

Once no mask is left a step is a function of the block's tokens alone (edits propose the argmax), so a state that
returns starts a cycle.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from redraft.decoding.canvas import Canvas


class Trail:
    """The states of one block since its last mask was filled, in order."""

    def __init__(self) -> None:
        self._states: list[Canvas] = []
        self._index: dict[bytes, int] = {}

    def follow(self, canvas: Canvas, remaining: int) -> Canvas:
        """Takes the newest state; when it was there before, returns the state `remaining` steps later, else itself.

        Tokens, confidences and log-probabilities are those that the plain loop would end with.
        """
        first = self._index.setdefault(canvas.tokens.tobytes(), len(self._states))
        self._states.append(canvas)
        period = len(self._states) - 1 - first
        if not period:
            return canvas
        end = canvas
        lap = self._states[first : first + remaining % period + 1]
        for before, after in pairwise(lap):
            changed = before.tokens != after.tokens
            end = end.write(changed, after.tokens, after.confidence, after.logprobs)
        return replace(end, step=canvas.step + remaining, post_steps=canvas.post_steps + remaining)
