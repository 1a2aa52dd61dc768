"""Rows that are there from the start: read, checked, and put in order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from redraft.errors import ConfigError, InvalidInput
from redraft.training.data.config import SourceConfig
from redraft.training.data.order import Epochs, Mixture
from redraft.training.data.rows import BadRow, Row, kind_of, parse, texts, with_standard_names

EXAMPLES = 5
SKIP_HINT = "mend them, or set data.bad_rows=skip to leave such rows out"
Test = Callable[[Row], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A row, and its place for messages."""

    row: Row
    where: str


class BadRowAt(BadRow):
    """A bad row with its place in the message."""


class Rows(Protocol):
    """Rows by index. rows: those of an epoch, None where there is none. fingerprint: changes with the data."""

    @property
    def rows(self) -> int | None: ...
    @property
    def fingerprint(self) -> str: ...
    def __getitem__(self, index: int) -> Found:
        """Raises BadRowAt."""
        ...

    def texts(self, index: int) -> Iterator[str]:
        """What a tokenizer is trained on; nothing for a bad row."""
        ...


class Reader(Protocol):
    """Raw rows of a file or dataset."""

    fingerprint: str

    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> dict[str, Any]:
        """Raises BadRow."""
        ...

    def where(self, row: int) -> str: ...


@dataclass
class BadRows:
    """Bad rows met so far: how many, and the first few by name."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(message)

    def __str__(self) -> str:
        more = f"; and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return f"{self.count} bad {'row' if self.count == 1 else 'rows'}: {'; '.join(self.examples)}{more}"


class Table:
    """The good rows of one source. Its kind is that of its first readable row, and is asked of all.

    test: a further check of each row on opening; raises BadRow. bad: what was left out.
    """

    def __init__(self, reader: Reader, config: SourceConfig, test: Test | None = None) -> None:
        self._reader, self._config = reader, config
        self.kind: str | None = None
        self.bad = BadRows()
        good = np.zeros(len(reader), bool)
        for number in range(len(reader)):
            try:
                row = self._parsed(number)
                if test is not None:
                    test(row)
            except BadRow as error:
                self.bad.add(f"{reader.where(number)}: {error}")
            else:
                good[number] = True
        self._good = None if good.all() else np.flatnonzero(good)
        self.rows = int(good.sum())
        self.fingerprint = f"{reader.fingerprint}:{self.rows}"  # what is left out moves every later row

    def __getitem__(self, index: int) -> Found:
        number = index if self._good is None else int(self._good[index])
        where = self._reader.where(number)
        try:
            return Found(self._parsed(number), where)
        except BadRow as error:  # the file was changed since
            raise BadRowAt(f"{where}: {error}") from error

    def _parsed(self, number: int) -> Row:
        raw = with_standard_names(self._reader[number], self._config.columns)
        if self.kind is None:
            self.kind = kind_of(raw)
        return parse(raw, self.kind, chat=self._config.chat)


class Shuffled:
    """Tables one after another, all their rows once in every epoch."""

    def __init__(self, tables: Sequence[Table], seed: int, *, shuffle: bool) -> None:
        self._tables = tables
        self._ends = np.cumsum([table.rows for table in tables])
        self.rows = int(self._ends[-1])
        self.fingerprint = _joined([table.fingerprint for table in tables])
        self._order = Epochs(self.rows, seed, shuffle=shuffle)

    def __getitem__(self, index: int) -> Found:
        row = self._order[index]
        number = int(np.searchsorted(self._ends, row, side="right"))
        table = self._tables[number]
        return table[row - int(self._ends[number]) + table.rows]

    def texts(self, index: int) -> Iterator[str]:
        return texts(self[index].row)


class Mixed:
    """Several kinds of rows by weight. It has no epoch of its own; each part keeps its own."""

    rows = None

    def __init__(self, parts: Sequence[Rows], weights: Sequence[float], seed: int) -> None:
        self._parts = parts
        self._mixture = Mixture(weights, seed)
        self.fingerprint = _joined([*(part.fingerprint for part in parts), *map(str, self._mixture.counts)])

    def __getitem__(self, index: int) -> Found:
        part, draw = self._mixture[index]
        return self._parts[part][draw]

    def texts(self, index: int) -> Iterator[str]:
        part, draw = self._mixture[index]
        return self._parts[part].texts(draw)


def refuse_or_report(tables: Sequence[Table], *, skip: bool, report: Callable[[str], None]) -> None:
    """Stops for the bad rows of tables, or reports them. Raises InvalidInput, also when a table has no good row."""
    bad = BadRows()
    for table in tables:
        bad.examples += table.bad.examples[: EXAMPLES - len(bad.examples)]
        bad.count += table.bad.count
        if not table.rows:
            raise InvalidInput(f"data: a source has no row to train on; {table.bad}")
    if not bad.count:
        return
    if not skip:
        raise InvalidInput(f"data: {bad}; {SKIP_HINT}")
    report(f"data: left out {bad}")


def _joined(fingerprints: Sequence[str]) -> str:
    if not fingerprints:
        raise ConfigError("data: no source")
    return hashlib.blake2b(";".join(fingerprints).encode(), digest_size=8).hexdigest()
