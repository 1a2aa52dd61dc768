"""Trace files: JSON lines, a header and then one frame a step. `redraft replay` shows them without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from redraft.cli.frames import Frame
from redraft.errors import InvalidInput
from redraft.types import SamplingParams

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: what was asked of which model.

    raw: the prompt was continued as it stands, without the chat template. special_ids: control tokens, which have
    no text of their own.
    """

    version: str
    model: str
    prompt: str
    raw: bool
    special_ids: tuple[int, ...]
    params: dict[str, Any]

    @classmethod
    def from_json(cls, record: Any) -> Header:
        if not isinstance(record, dict) or record.get("redraft_trace") != FORMAT:
            raise InvalidInput(f'the first line must be a header with "redraft_trace": {FORMAT}')
        kinds = {"version": str, "model": str, "prompt": str, "raw": bool, "special_ids": list, "params": dict}
        for name, kind in kinds.items():
            if not isinstance(record.get(name), kind):
                raise InvalidInput(f"header field {name} must be {kind.__name__}, got {record.get(name)!r}")
        special = record["special_ids"]
        if not all(isinstance(token, int) for token in special):
            raise InvalidInput("header field special_ids must hold token ids")
        return cls(
            version=record["version"],
            model=record["model"],
            prompt=record["prompt"],
            raw=record["raw"],
            special_ids=tuple(special),
            params=record["params"],
        )

    @classmethod
    def of(cls, model: str, prompt: str, raw: bool, special_ids: frozenset[int], params: SamplingParams) -> Header:
        from redraft import __version__

        return cls(__version__, model, prompt, raw, tuple(sorted(special_ids)), asdict(params))


class TraceWriter:
    """Writes a trace, a line at a time, so that what was written before an interruption can be replayed."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises InvalidInput when the file can't be written."""
        self._file: TextIO
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"cannot write trace {path}: {error.strerror or error}") from error
        self._write({"redraft_trace": FORMAT, **asdict(header)})

    def write(self, frame: Frame) -> None:
        self._write(frame.to_json())

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()


def read_trace(path: Path) -> tuple[Header, list[Frame]]:
    """Header and frames of a trace file. Raises InvalidInput naming the line that is broken."""
    lines = _lines(path)
    try:
        _, record = next(lines)
    except StopIteration:
        raise InvalidInput(f"{path} is empty: a trace begins with a header line") from None
    try:
        header = Header.from_json(record)
    except InvalidInput as error:
        raise InvalidInput(f"{path} line 1: {error}") from error
    frames = []
    for number, record in lines:
        try:
            frames.append(Frame.from_json(record))
        except InvalidInput as error:
            raise InvalidInput(f"{path} line {number}: {error}") from error
    return header, frames


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield number, json.loads(line)
    except OSError as error:
        raise InvalidInput(f"cannot read trace {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} line {number + 1}: not UTF-8 text") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} line {number}: not JSON ({error})") from error
