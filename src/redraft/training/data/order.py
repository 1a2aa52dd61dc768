"""Which row comes at which index: epochs in a shuffled order, and mixtures with exact shares.

Both are pure functions of (seed, index), so a run resumes at the exact sample by its index alone. The raw output of
PCG64 is specified and stays the same in all versions of numpy; `Generator.permutation` may change with them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from redraft.errors import ConfigError

WINDOW = 1000  # draws in which every source of a mixture has its exact share
_EPOCH, _WINDOW = 1, 2  # keep the two uses of a seed apart


def permutation(size: int, *key: int) -> np.ndarray:
    """int64 [size]: a uniformly drawn permutation, the same for the same key."""
    return np.argsort(np.random.PCG64(np.random.SeedSequence(key)).random_raw(size), kind="stable")


class Epochs:
    """Row of each index: epoch after epoch, every row once in each."""

    def __init__(self, rows: int, seed: int, *, shuffle: bool = True) -> None:
        if rows < 1:
            raise ConfigError("data: an epoch needs at least one row, got none")
        self.rows, self.seed, self.shuffle = rows, seed, shuffle
        self._order = functools.lru_cache(maxsize=2)(self._permutation)  # a step may lie on an epoch's border

    def __getitem__(self, index: int) -> int:
        epoch, place = divmod(index, self.rows)
        return int(self._order(epoch)[place]) if self.shuffle else place

    def _permutation(self, epoch: int) -> np.ndarray:
        return permutation(self.rows, self.seed, _EPOCH, epoch)


class Mixture:
    """(source, its how manieth draw) of each index. In every window of `WINDOW` draws the shares are exact.

    The shares are rounded by largest remainders; a weight that would give none of a window's draws is an error.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self.seed = seed
        exact = np.array(weights, np.float64) / sum(weights) * WINDOW
        self.counts = np.floor(exact).astype(np.int64)
        by_remainder = np.argsort(self.counts - exact, kind="stable")
        self.counts[by_remainder[: WINDOW - int(self.counts.sum())]] += 1
        if not self.counts.all():
            least = int(np.argmin(self.counts))
            raise ConfigError(
                f"data: weight {weights[least]} of {sum(weights)} gives less than one draw in {WINDOW}; raise it or "
                "leave the source out"
            )
        self._window = functools.lru_cache(maxsize=2)(self._draws)

    def __getitem__(self, index: int) -> tuple[int, int]:
        window, place = divmod(index, WINDOW)
        sources, earlier = self._window(window)
        source = int(sources[place])
        return source, window * int(self.counts[source]) + int(earlier[place])

    def _draws(self, window: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 [WINDOW]: source of each draw, and how many earlier draws of the window had the same."""
        order = permutation(WINDOW, self.seed, _WINDOW, window)
        sources = np.repeat(np.arange(len(self.counts)), self.counts)[order]
        earlier = np.empty(WINDOW, np.int64)
        for source, count in enumerate(self.counts):
            earlier[sources == source] = np.arange(count)
        return sources, earlier
