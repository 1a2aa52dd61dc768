"""What one item cost and scored at one setting, and the file that such records are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from redraft.errors import InvalidInput

Key = tuple[str, str, str]
"""(model, item key, setting key)"""
Edit = tuple[int, int, int, str, str]
"""(step, block, position in the block, old token, new token), the tokens as text"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One answer. model, item, setting: the key (see `Key`).

    score: from 0 to 1; None when the grader failed, and `error` says how. error without that: why there is no answer.
    tokens: generated, EOS counted. forwards: denoising forwards; 0 when a server doesn't tell. blocks: the answer's
    length in blocks, rounded up; 0 when unknown. stutter: share of words that repeat those before them (see `stutter`).
    seconds: wall time of the answer; of a batch, the share of its wall time by tokens. first_block_seconds: until the
    first block, the prompt's prefill and any waiting included. trace: the edits, where they were recorded.
    """

    model: str
    item: str
    setting: str
    suite: str
    task: str
    level: int
    split: str
    score: float | None
    error: str
    tokens: int
    forwards: int
    edits: int
    blocks: int
    stutter: float
    seconds: float
    first_block_seconds: float
    finish_reason: str
    prompt: str
    response: str
    trace: tuple[Edit, ...] = ()

    @property
    def key(self) -> Key:
        return self.model, self.item, self.setting

    @classmethod
    def from_json(cls, raw: Any) -> Record:
        """Raises InvalidInput for anything but an object with exactly the fields of a record."""
        names = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or raw.keys() != names:
            raise InvalidInput(f"a record must be an object with the fields {', '.join(sorted(names))}")
        try:
            trace = tuple(
                (int(step), int(block), int(place), str(a), str(b)) for step, block, place, a, b in raw["trace"]
            )
        except (TypeError, ValueError):
            raise InvalidInput("trace must be a list of [step, block, position, old, new]") from None
        return cls(**{**raw, "trace": trace})


def read_records(path: Path) -> list[Record]:
    """The records of a file that is no longer written to. Raises InvalidInput naming the line that is none."""
    try:
        with path.open("rb") as file:
            return list(_parsed(path, file))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from error


class RecordLog:
    """A JSONL file of records. Opening it reads what is there, so that an interrupted run goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        """Creates the file and its folder. Raises InvalidInput naming the line that is no record."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise InvalidInput(f"cannot write records to {path}: {error.strerror or error}") from error
        try:
            self.records = {record.key: record for record in self._read(path)}
        except InvalidInput:
            self._file.close()
            raise

    def add(self, records: Iterable[Record]) -> None:
        """Appends records and hands them to the system at once."""
        for record in records:
            self._file.write(json.dumps(asdict(record), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            self.records[record.key] = record
        self._file.flush()

    def _read(self, path: Path) -> Iterator[Record]:
        self._file.seek(0)
        lines = [line for line in self._file if line.endswith(b"\n")]  # a crash may have cut the last one off
        yield from _parsed(path, lines)
        self._file.truncate(sum(map(len, lines)))

    def __enter__(self) -> RecordLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()


def _parsed(path: Path, lines: Iterable[bytes]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        try:
            yield Record.from_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} line {number} is no record: {error}") from error
