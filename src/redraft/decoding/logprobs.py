"""Log-probabilities of a block's tokens, kept from write to write.

Shapes: L positions of a block, K alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.types import TokenLogprob


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """token: float64 [L], natural log-probability of each position's token. ids: int64 [L, K], the most likely ids,
    most likely first; values: float64 [L, K], their log-probabilities, -inf where there are fewer ids than K."""

    token: np.ndarray
    ids: np.ndarray
    values: np.ndarray

    @classmethod
    def blank(cls, length: int, count: int) -> Logprobs:
        """Nothing known: log-probability 0 and no alternatives, which is what the prompt keeps."""
        shape = (length, count)
        return cls(np.zeros(length), np.zeros(shape, dtype=np.int64), np.full(shape, -np.inf))

    @classmethod
    def joined(cls, parts: Sequence[Logprobs]) -> Logprobs:
        """Those of neighbouring blocks, as of one."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("token", "ids", "values")))

    def part(self, where: slice) -> Logprobs:
        """Those of some neighbouring positions."""
        return Logprobs(self.token[where], self.ids[where], self.values[where])

    def write(self, where: np.ndarray, new: Logprobs) -> Logprobs:
        """Those of `new` at the positions `where` (bool [L]), these elsewhere."""
        rows = where[:, None]
        return Logprobs(
            np.where(where, new.token, self.token),
            np.where(rows, new.ids, self.ids),
            np.where(rows, new.values, self.values),
        )

    def listed(self, tokens: np.ndarray, start: int = 0) -> list[TokenLogprob]:
        """One value a position from `start` on; tokens: int64 [L], those of the canvas."""
        columns = zip(
            tokens[start:].tolist(),
            self.token[start:].tolist(),
            self.ids[start:].tolist(),
            self.values[start:].tolist(),
            strict=True,
        )
        return [
            TokenLogprob(token, own, tuple(pair for pair in zip(ids, values, strict=True) if pair[1] > -np.inf))
            for token, own, ids, values in columns
        ]
