"""The states that decoding went through, as the model saw them: what it read at each step, and what it wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from redraft.types import CanvasEvent


@dataclass(frozen=True, slots=True)
class State:
    """One step on one block of B positions. tokens: int64 [B], what the model read; masked: bool [B], where that was
    the mask; written: bool [B], what the step drafted or edited, and after: int64 [B], the block behind it."""

    tokens: np.ndarray
    masked: np.ndarray
    written: np.ndarray
    after: np.ndarray


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The steps of one answer by block of the sequence, prompt included."""

    blocks: dict[int, list[State]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return sum(len(states) for states in self.blocks.values())


def trajectories(events: Iterable[CanvasEvent], mask_id: int) -> dict[tuple[int, int], Trajectory]:
    """The trajectory of each (request, choice) from the events of every step, without multi-block editing."""
    out: dict[tuple[int, int], Trajectory] = {}
    for event in events:
        states = out.setdefault((event.request, event.choice), Trajectory()).blocks.setdefault(event.block, [])
        after = np.array(event.tokens, np.int64)
        written = np.zeros(len(after), bool)
        written[[*event.drafted, *event.edited]] = True
        if states:
            before = states[-1].after
        else:
            before = after.copy()
            before[[i for i in range(len(after)) if i not in event.prompt]] = mask_id
        states.append(State(before, before == mask_id, written, after))
    return out
