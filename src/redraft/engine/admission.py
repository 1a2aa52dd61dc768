"""Who may run next: the queue, and what a sequence must find before it leaves it.

P is the page length.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Listing

import numpy as np

from redraft.engine.prefix_cache import PrefixCache
from redraft.engine.radix import RootKey
from redraft.engine.sequence import Sequence


class Admission:
    """The sequences that wait, oldest first. One that lost its pages waits in the place of its age again.

    It admits by three rules. In order: who finds no pages lets nobody pass. With room: for all that the sequence has
    committed and its open block, beyond what the running ones still need for theirs and one page more for each of them,
    so that they aren't preempted at once. And not too early: while a running sequence is about to compute pages that
    this one could share, it waits for them and lets others pass, so that equal prompts are computed once.
    """

    def __init__(self, cache: PrefixCache, *, share: bool) -> None:
        self._cache = cache
        self._share = share
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_age)

    def remove(self, sequence: Sequence) -> None:
        """Out of the queue, if it is there."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    @property
    def at_border(self) -> bool:
        """Whether no step has been taken on the open block of anyone who waits."""
        return all(sequence.at_border for sequence in self._waiting)

    def admit(self, root: RootKey, running: list[Sequence], places: int, *, held: bool = False) -> None:
        """Moves to `running` (oldest first) who may run, until `places` run; looks at as many candidates at most. held:
        only those whose open block has been begun."""
        candidates = [sequence for sequence in self._waiting if not (held and sequence.at_border)]
        for sequence in candidates[:places]:
            if len(running) >= places:
                return
            found = self._cache.tree.find(root, sequence.tokens[: sequence.frozen]) if self._share else []
            if self._soon(sequence, root, len(found), running):
                continue
            if not self._room(sequence, found, running):
                return
            self._waiting.remove(sequence)
            pages = self._cache.match(root, sequence.tokens[: sequence.frozen]) if self._share else []
            sequence.admit(root, pages)
            insort(running, sequence, key=_age)

    def _soon(self, sequence: Sequence, root: RootKey, found: int, running: Listing[Sequence]) -> bool:
        """Whether the page after those found will come from a running sequence, which then has it to compute."""
        stop = (found + 1) * sequence.page_length
        if not self._share or stop > sequence.frozen:
            return False
        return any(
            other.root == root
            and other.computed < stop <= other.frozen
            and np.array_equal(other.tokens[:stop], sequence.tokens[:stop])
            for other in running
        )

    def _room(self, sequence: Sequence, found: Listing[int], running: Listing[Sequence]) -> bool:
        idle = sum(self._cache.pool.holders(page) == 1 for page in found)  # in the tree alone: to be had, until we do
        spoken_for = sum(other.wished - len(other.pages) + 1 for other in running)
        return self._cache.available - idle >= sequence.wished - len(found) + spoken_for


def _age(sequence: Sequence) -> int:
    return sequence.order
