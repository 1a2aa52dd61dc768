"""What the engine counts, and the clock that it counts by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from redraft.engine.prefix_cache import CacheStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """waiting, running: sequences (each choice of a request is one) in the queue and in forwards. pages: see there.
    forwards: of the engine; each serves all sequences that take part. denoising_forwards: the sum of what the sequences
    count, one a step of one block. prefill_tokens: committed positions that were read for their keys and values, those
    again that preemption had dropped; cached_tokens: those of prompts that were found in the prefix cache.
    generated_tokens: of requests that have ended, however they did. preempted: how often a sequence lost its pages.
    seconds: spent in steps; prefill_seconds: the share of it that the read positions have, of all.
    """

    waiting: int
    running: int
    pages: CacheStatistics
    forwards: int
    denoising_forwards: int
    prefill_tokens: int
    cached_tokens: int
    drafted: int
    edits: int
    generated_tokens: int
    preempted: int
    finished: int
    aborted: int
    failed: int
    seconds: float
    prefill_seconds: float

    @property
    def hit_rate(self) -> float:
        """Share of the whole pages of prompts that were in the prefix cache."""
        return self.pages.hit_rate

    @property
    def tokens_per_forward(self) -> float:
        """Positions drafted a denoising forward of a sequence."""
        return self.drafted / self.denoising_forwards if self.denoising_forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0


class Clock:
    """Seconds spent in steps: a consumer that takes its time between two of them doesn't slow the engine's figures."""

    def __init__(self) -> None:
        self._before = 0.0
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._started is None else perf_counter() - self._started)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._started = perf_counter()
        try:
            yield
        finally:
            self._before, self._started = self.seconds, None


class Meter:
    """The running sums behind `EngineStatistics`, under the same names."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.forwards = self.denoising_forwards = 0
        self.prefill_tokens = self.cached_tokens = 0
        self.drafted = self.edits = self.generated_tokens = 0
        self.preempted = self.finished = self.aborted = self.failed = 0
        self.prefill_seconds = 0.0

    def forward(self, committed: int, positions: int, seconds: float) -> None:
        """One forward over `positions`, of which so many were committed already."""
        self.forwards += 1
        self.prefill_tokens += committed
        self.prefill_seconds += seconds * committed / positions

    def statistics(self, waiting: int, running: int, pages: CacheStatistics) -> EngineStatistics:
        sums = {name: value for name, value in vars(self).items() if name != "clock"}
        return EngineStatistics(waiting=waiting, running=running, pages=pages, seconds=self.clock.seconds, **sums)
