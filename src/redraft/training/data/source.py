"""What a training step takes from: documents or pairs by index.

A step takes the indices [step * samples, (step + 1) * samples). All that lies behind an index is a pure function of the
data, the recipe and the seed, so that a resumed run, on however many processes, goes on at the exact sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from redraft.errors import ConfigError, InvalidInput
from redraft.text.tokenizer import Tokenizer
from redraft.training.data.config import DataConfig, SourceConfig
from redraft.training.data.documents import Renderer
from redraft.training.data.hub import BUILDERS, HubStream, HubTable
from redraft.training.data.jsonl import SUFFIXES, JsonlFiles
from redraft.training.data.rows import BadRow, Row, Text
from redraft.training.data.skills import SkillRows, SkillTasks
from redraft.training.data.table import (
    SKIP_HINT,
    BadRowAt,
    BadRows,
    Mixed,
    Reader,
    Rows,
    Shuffled,
    Table,
    Test,
    refuse_or_report,
)
from redraft.types import Pair, Sample

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Report = Callable[[str], None]


class Source(Protocol[T_co]):
    """Items by index.

    rows: indices of an epoch; None where there is none. fingerprint: text that changes with the data; a run that is
    resumed with another one doesn't go on where it stopped. bad: the rows that were skipped when their turn came.
    """

    @property
    def rows(self) -> int | None: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def bad(self) -> BadRows: ...
    def documents(self, index: int) -> Sequence[T_co]:
        """Usually one item; several pieces of a long text; none for a bad row that is skipped."""
        ...


class RowSource(Generic[T]):
    """Items made of rows."""

    def __init__(self, rows: Rows, make: Callable[[Row, int], list[T]], *, skip: bool) -> None:
        self._rows, self._make, self._skip = rows, make, skip
        self.rows, self.fingerprint, self.bad = rows.rows, rows.fingerprint, BadRows()

    def documents(self, index: int) -> list[T]:
        try:
            found = self._rows[index]
            try:
                return self._make(found.row, index)
            except BadRow as error:
                raise BadRowAt(f"{found.where}: {error}") from error
        except BadRowAt as error:
            if not self._skip:
                raise InvalidInput(f"data: {error}; {SKIP_HINT}") from error
            self.bad.add(str(error))
            return []


def open_source(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    seed: int,
    total: int,
    block_length: int = 1,
    context: int | None = None,
    report: Report | None = None,
) -> RowSource[Sample]:
    """The documents of a run.

    total: indices of the whole run, for the curriculum of the skills. block_length: a long text is split at its
    borders. context: positions that the model takes, a limit like `data.max_length`. report: told about skipped rows;
    by default they are logged. Raises ConfigError for settings, and InvalidInput for bad rows that aren't skipped.
    """
    renderer = _renderer(config, tokenizer, block_length, context)

    def test(row: Row) -> None:
        if not isinstance(row, Text):  # nothing can be wrong with a text that is split
            renderer.documents(row, 0)

    rows = _open(config, seed, total, test if config.check == "all" else None, report)
    return RowSource(rows, renderer.documents, skip=config.bad_rows == "skip")


def open_pairs(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    seed: int,
    context: int | None = None,
    report: Report | None = None,
) -> RowSource[Pair]:
    """The preference pairs of a run; as `open_source`."""
    if config.skills:
        raise ConfigError("data.skills give documents; preference training needs data.sources with pairs only")
    renderer = _renderer(config, tokenizer, 1, context)

    def make(row: Row, index: int) -> list[Pair]:
        return [renderer.pair(row, index)]

    def test(row: Row) -> None:
        renderer.pair(row, 0)

    rows = _open(config, seed, 1, test if config.check == "all" else None, report)
    return RowSource(rows, make, skip=config.bad_rows == "skip")


def corpus(config: DataConfig, *, seed: int, total: int, samples: int) -> Iterator[str]:
    """Texts of `samples` rows spread over the run, for the training of a tokenizer."""
    rows = _open(config, seed, total, None, lambda _: None)
    stride = max(1, total // samples)
    return (text for i in range(samples) for text in rows.texts(i * stride))


def _renderer(config: DataConfig, tokenizer: Tokenizer, block_length: int, context: int | None) -> Renderer:
    longest = config.max_length if context is None else min(config.max_length, context)
    return Renderer(tokenizer, longest, block_length)


def _open(config: DataConfig, seed: int, total: int, test: Test | None, report: Report | None) -> Rows:
    """All rows of a run in their order."""
    if not config.skills and not config.sources:
        raise ConfigError("data needs skills or sources, got neither")
    opened = {i: Table(_reader(part), part, test) for i, part in enumerate(config.sources) if not part.streaming}
    refuse_or_report(
        list(opened.values()),
        skip=config.bad_rows == "skip",
        report=report or logging.getLogger(__name__).warning,
    )
    weights = [source.weight for source in config.sources]
    if not config.skills and len(opened) == len(weights) and not all(weights):
        return Shuffled(list(opened.values()), seed, shuffle=config.shuffle)
    parts: list[Rows] = []
    for i, source in enumerate(config.sources):
        key = seed + i  # sources of one length shouldn't share their order
        if source.streaming:
            parts.append(HubStream(source, key, shuffle=config.shuffle))
        else:
            parts.append(Shuffled([opened[i]], key, shuffle=config.shuffle))
    if config.skills:
        share = config.skills_weight / (config.skills_weight + sum(weights)) if parts else 1.0
        parts.append(SkillRows(SkillTasks(config, seed, round(total * share))))
        weights.append(config.skills_weight)
    return parts[0] if len(parts) == 1 else Mixed(parts, weights, seed)


def _reader(source: SourceConfig) -> Reader:
    path = Path(source.path)
    if path.is_file():
        if path.suffix in SUFFIXES:
            return JsonlFiles([path])
        if path.suffix not in BUILDERS:
            known = ", ".join([*SUFFIXES, *BUILDERS])
            raise ConfigError(f"data.sources: {path} has an unknown ending {path.suffix!r}; known: {known}")
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if files:
            return JsonlFiles(files)
    elif path.is_absolute() or path.suffix or len(path.parts) > 2:
        raise ConfigError(f"data.sources: {path} doesn't exist")
    return HubTable(source)
