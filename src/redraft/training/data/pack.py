"""Packing: documents into rows of a fixed number of positions. They never see each other, so any order will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from redraft.errors import ConfigError
from redraft.types import Pair, Sample

T = TypeVar("T", Sample, Pair)


def pack(items: Sequence[T], length: int) -> list[list[T]]:
    """Rows of at most `length` positions by first-fit decreasing (Johnson 1973; at most 11/9 of the fewest rows + 1).

    Depends on the items alone, not on their order: they are taken by length, then index. Raises ConfigError for one
    that is longer than a row.
    """
    rows: list[list[T]] = []
    room: list[int] = []
    for item in sorted(items, key=lambda item: (-len(item), item.index)):
        if len(item) > length:
            raise ConfigError(
                f"batch.length is {length}, but document {item.index} has {len(item)} positions; raise it, or lower "
                "data.max_length"
            )
        row = next((number for number, left in enumerate(room) if len(item) <= left), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(length)
        rows[row].append(item)
        room[row] -= len(item)
    return rows
