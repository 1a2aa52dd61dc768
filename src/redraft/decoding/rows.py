"""The rows of one selection: what each needs beyond the argmax, gathered over all requests of a forward.

A row is one wanted position of one ask. Shapes: N rows, M entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.decoding import penalties
from redraft.decoding.candidates import Ask
from redraft.decoding.sampling import uniforms


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Facts about some rows. row: int64 [M], rising; a row may come often or never. columns: arrays [M]."""

    row: np.ndarray
    columns: tuple[np.ndarray, ...]

    @classmethod
    def join(cls, parts: Sequence[tuple[np.ndarray, ...]]) -> Entries:
        """The entries of one part after the other; each is (row, columns...)."""
        if not parts:
            return cls(np.empty(0, dtype=np.int64), ())
        row, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(row, tuple(columns))

    def between(self, low: int, high: int, device: torch.device) -> tuple[Tensor, ...] | None:
        """(row less `low`, columns...) of the rows from `low` to `high`, None when there are none."""
        first, last = np.searchsorted(self.row, (low, high))
        if first == last:
            return None
        cut = (column[first:last] for column in (self.row - low, *self.columns))
        return tuple(torch.from_numpy(column).to(device) for column in cut)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """start: int64 [asks + 1], the first row of each ask. added: (row, id, value), no pair twice in one of them, added
    to the logits in this order. banned: (row, id), never proposed. drawn: (row, uniform, temperature, top_p) and, in
    the second, top_k. listed: (row), those whose `alternatives` most likely ids are reported."""

    start: np.ndarray
    added: tuple[Entries, Entries]
    banned: Entries
    drawn: tuple[Entries, Entries]
    listed: Entries
    alternatives: int

    @classmethod
    def of(cls, asks: Sequence[Ask]) -> Rows:
        start = np.cumsum([0, *(len(ask.wanted) for ask in asks)])
        common, stutter, banned, free, limited, listed = [], [], [], [], [], []
        for ask, first in zip(asks, start[:-1], strict=True):
            selection = ask.selection
            row = np.arange(first, first + len(ask.wanted))
            banned.append(_each(row, np.array(selection.banned, dtype=np.int64)))
            if selection.logit_bias or selection.counts_tokens:
                common.append(_each(row, *penalties.shared(ask)))
            if selection.stutter_penalty:
                place, left = penalties.stutter(ask)
                stutter.append((row[place], left, np.full(len(place), -selection.stutter_penalty)))
            if selection.temperature > 0:
                (limited if selection.top_k else free).append(_draws(ask, row))
            if selection.logprobs:
                listed.append((row,))
        return cls(
            start,
            (Entries.join(common), Entries.join(stutter)),
            Entries.join(banned),
            (Entries.join(free), Entries.join(limited)),
            Entries.join(listed),
            max((ask.selection.logprobs or 0 for ask in asks), default=0),
        )


def _each(row: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """The same columns for every row."""
    return np.repeat(row, len(columns[0])), *(np.tile(column, len(row)) for column in columns)


def _draws(ask: Ask, row: np.ndarray) -> tuple[np.ndarray, ...]:
    """Only masked positions are drawn: redrawing a settled token would keep a block from converging."""
    selection, canvas = ask.selection, ask.canvas
    masked = canvas.masked[ask.wanted]
    uniform = uniforms(selection.seed, selection.choice, canvas.block, canvas.step, len(canvas.tokens))
    count = int(masked.sum())
    settings = (np.full(count, selection.temperature), np.full(count, selection.top_p))
    top_k = (np.full(count, selection.top_k),) if selection.top_k else ()
    return row[masked], uniform[ask.wanted[masked]], *settings, *top_k
