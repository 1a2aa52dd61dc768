"""Which prompts are to be answered, by whom, and which answers are there: none is lost, none is counted twice.

Prompt i belongs to batch i // prompts. The trainer takes the batches in order; its version is the number of those that
it has taken and trained on. A prompt may be begun only while its batch is at most `max_staleness` ahead of the version,
and by weights of that age at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts to be answered together. least: the oldest version of the weights that may begin them."""

    prompts: tuple[int, ...]
    least: int


class Ledger(Generic[T]):
    """prompts: of a batch. version: batches that have been trained on. batches: of the whole run; None for any number.
    Not for several threads at once."""

    def __init__(self, prompts: int, max_staleness: int, version: int = 0, batches: int | None = None) -> None:
        self.prompts, self.max_staleness, self.version, self.batches = prompts, max_staleness, version, batches
        self._next = version * prompts
        self._again: set[int] = set()
        self._out: set[int] = set()
        self._done: dict[int, T] = {}
        self.duplicates = 0

    def hand_out(self, most: int) -> Job | None:
        """A job of up to `most` prompts of one batch, the earliest first; None while there is nothing to do."""
        chosen: list[int] = []
        while len(chosen) < most:
            index = min(self._again) if self._again else self._next
            batch = index // self.prompts
            if batch > self._last or (chosen and batch != chosen[0] // self.prompts):
                break
            if self._again:
                self._again.remove(index)
            else:
                self._next += 1
            chosen.append(index)
        if not chosen:
            return None
        self._out.update(chosen)
        return Job(tuple(chosen), max(0, chosen[0] // self.prompts - self.max_staleness))

    @property
    def _last(self) -> int:
        """The last batch that may be begun."""
        ahead = self.version + self.max_staleness
        return ahead if self.batches is None else min(ahead, self.batches - 1)

    def put(self, index: int, answered: T) -> bool:
        """Takes what a prompt was answered with; False, and nothing is taken, if it has been before."""
        if index in self._done or index < self.version * self.prompts:
            self.duplicates += 1
            return False
        self._out.discard(index)
        self._again.discard(index)
        self._done[index] = answered
        return True

    def lose(self, job: Job) -> None:
        """The job won't be answered by whom it was given to; what isn't there yet is handed out again."""
        for index in job.prompts:
            if index in self._out:
                self._out.remove(index)
                self._again.add(index)

    def take(self) -> list[T] | None:
        """What the prompts of the next batch were answered with, in order, once all are there."""
        wanted = range(self.version * self.prompts, (self.version + 1) * self.prompts)
        return [self._done[index] for index in wanted] if all(index in self._done for index in wanted) else None

    def trained(self) -> None:
        """The next batch has been trained on."""
        for index in range(self.version * self.prompts, (self.version + 1) * self.prompts):
            del self._done[index]
        self.version += 1
