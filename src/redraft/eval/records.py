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
"""(model fingerprint, item key, setting key)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One answer. model, item, setting: the key (see `Key`).

    tokens: generated, EOS counted. forwards: denoising forwards. blocks: the answer's length in blocks, rounded up.
    seconds: wall time of the whole answer; first_block_seconds: of its first block, the prompt's prefill included.
    """

    model: str
    item: str
    setting: str
    skill: str
    level: int
    split: str
    score: float
    tokens: int
    forwards: int
    edits: int
    blocks: int
    seconds: float
    first_block_seconds: float
    finish_reason: str
    prompt: str
    response: str

    @property
    def key(self) -> Key:
        return self.model, self.item, self.setting

    @classmethod
    def from_json(cls, raw: Any) -> Record:
        """Raises InvalidInput for anything but an object with exactly the fields of a record."""
        names = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or raw.keys() != names:
            raise InvalidInput(f"a record must be an object with the fields {', '.join(sorted(names))}")
        return cls(**raw)


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
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                yield Record.from_json(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise InvalidInput(f"{path} line {number} is no record: {error}") from error
        self._file.truncate(whole)  # a crash may have cut the last line off

    def __enter__(self) -> RecordLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()
