"""What is asked of the engine, and what it may use. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from redraft.errors import InvalidInput
from redraft.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """max_running: sequences (each choice of a request is one) that take part in forwards at the same time.
    forward_tokens: positions of a forward. The open blocks of running sequences come first, each with the block before
    it where that still has to be read; what they leave is for prompts, at least one block of one of them. The last
    part of a prompt brings its open block along, on top.
    cache_tokens, memory_fraction: how large the memory of keys and values is, in positions or as a share of what is
    free on the device, or else in pages; without any of the three as much as `max_running` sequences of the whole
    context need, but at most half of what is free (see `redraft.engine.memory`).
    queue_limit: sequences that may wait beyond those that have a place at once; None for any number.
    prefix_cache: whether pages of the same tokens are shared, and kept for the next request that begins with them.
    """

    max_running: int = 16
    forward_tokens: int = 1024
    cache_tokens: int | None = None
    memory_fraction: float | None = None
    pages: int | None = None
    queue_limit: int | None = None
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("max_running", "forward_tokens", "cache_tokens", "pages", "queue_limit"):
            value, low = getattr(self, name), int(name != "queue_limit")
            if value is None and name not in ("max_running", "forward_tokens"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidInput(f"{name} must be an integer of at least {low}, got {value!r}")
        share = self.memory_fraction
        if share is not None and (isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1):
            raise InvalidInput(f"memory_fraction must be more than 0 and at most 1, got {share!r}")
        sizes = [name for name in ("cache_tokens", "memory_fraction", "pages") if getattr(self, name) is not None]
        if len(sizes) > 1:
            raise InvalidInput(f"{' and '.join(sizes)} say the same thing; give one of them")
        if not isinstance(self.prefix_cache, bool):
            raise InvalidInput(f"prefix_cache must be true or false, got {self.prefix_cache!r}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be answered `params.n` times.

    id: names it until it has ended, and stands in its events. deadline: a time of `time.monotonic()` (the same clock in
    all processes of a machine) at which it ends with "abort", whatever it has by then. events: an event for every step;
    without it only those that freeze a block or end the request are made.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    id: int = 0
    deadline: float | None = None
    events: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended by an error of its own; others aren't touched by it. request: its id."""

    request: int
    error: Exception
