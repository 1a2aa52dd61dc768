"""Measuring some of a decoder's forwards, and what the whole run would have taken.

A full recomputation of a long prompt takes minutes a run, and its forwards cost the same within a block: they read the
same number of positions, whatever the tokens. So it is enough to time the first `steps` forwards of some blocks, each
a real step of the real decoder on the tokens that the cached decoder had there. The cached decoder's forwards are of
three kinds (the prompt's, those that also commit the block before, the others), so it is run from the start, and may
stop early in its second block.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.systems import System

States = dict[tuple[int, int], tuple[int, ...]]  # (block, step) -> the block's tokens after the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A prompt of whole blocks, and how many blocks of `length` tokens, `steps` denoising steps each, follow it."""

    prompt: tuple[int, ...]
    blocks: int
    length: int
    steps: int

    @property
    def forwards(self) -> int:
        return self.blocks * self.steps


@dataclass(frozen=True, slots=True)
class Part:
    """Which forwards are run. blocks: those sampled, each on its own; None runs from the start without a break.
    limit: steps of each sampled block, or of the run from the start; None for all."""

    blocks: tuple[int, ...] | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds: by block, of the steps run. total: seconds of the whole task, extrapolated unless all steps ran."""

    seconds: Mapping[int, Sequence[float]]
    states: States
    total: float
    sampled: bool

    @property
    def forwards(self) -> int:
        """Forwards that really ran."""
        return sum(map(len, self.seconds.values()))


def measure(system: System, task: Task, part: Part, reference: States, filler: Sequence[int]) -> Measured:
    """Runs a part of a task. reference: states that the cached decoder reached, so that a sampled block follows the
    tokens it really follows; filler: tokens to stand there where those are not known."""
    runs: dict[int, list[Any]] = {}
    if part.blocks is None:
        steps = system.run(task.prompt, task.blocks * task.length, part.limit)
        for index, step in enumerate(steps):
            runs.setdefault(index // task.steps, []).append(step)
    else:
        for block in part.blocks:
            prefix = list(task.prompt)
            for before in range(block):
                known = reference.get((before, task.steps - 1))
                prefix += known or filler[before * task.length : (before + 1) * task.length]
            runs[block] = system.run(prefix, task.length, part.limit)
    seconds = {block: [step.seconds for step in steps] for block, steps in runs.items()}
    states = {(block, index): step.tokens for block, steps in runs.items() for index, step in enumerate(steps)}
    total = total_seconds(seconds, task, recomputes=system.recomputes)
    return Measured(seconds, states, total, sampled=sum(map(len, seconds.values())) < task.forwards)


def total_seconds(seconds: Mapping[int, Sequence[float]], task: Task, *, recomputes: bool) -> float:
    """Seconds of all blocks from those of some steps. A block that was not run costs what the others cost on average;
    with a cache that is what those after the first cost, since the first reads the prompt."""

    def whole(steps: Sequence[float]) -> float:
        if len(steps) == task.steps:
            return sum(steps)
        if recomputes:
            return statistics.fmean(steps) * task.steps
        # The first forward of a block commits the block before it, and so costs more than the rest.
        first, *rest = steps
        if not rest:
            raise ValueError("with a cache, a block needs two measured steps: its first and an ordinary one")
        return first + statistics.fmean(rest) * (task.steps - 1)

    costs = {block: whole(steps) for block, steps in seconds.items()}
    missing = task.blocks - len(costs)
    if not missing:
        return sum(costs.values())
    alike = [cost for block, cost in costs.items() if recomputes or block > 0]
    if not alike:
        raise ValueError("with a cache, the first block says nothing about the others")
    return sum(costs.values()) + missing * statistics.fmean(alike)


def spaced_blocks(count: int, blocks: int) -> tuple[int, ...]:
    """Blocks to sample: all, evenly spaced with both ends, or the one just before the middle, which is shorter than
    the average, so that a single sample makes recomputation look faster rather than slower than it is."""
    if count >= blocks:
        return tuple(range(blocks))
    if count == 1:
        return ((blocks - 1) // 2,)
    return tuple(round(index * (blocks - 1) / (count - 1)) for index in range(count))


def agreement(states: States, reference: States) -> tuple[int, int]:
    """(steps that left the same tokens, steps compared)."""
    common = states.keys() & reference.keys()
    return sum(states[key] == reference[key] for key in common), len(common)


def spread(values: Sequence[float]) -> dict[str, float | int] | None:
    """Median, extremes and number; None of nothing."""
    if not values:
        return None
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
    }
