"""JSONL files by row: an index of byte offsets, so that no text stays in memory and any row is one read away."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import ConfigError
from redraft.training.data.rows import BadRow

SUFFIXES = (".jsonl", ".ndjson")
BOM = b"\xef\xbb\xbf"


class JsonlFile:
    """The lines of a file that aren't blank. 24 bytes of memory a row.

    fingerprint: a hash of the whole file, taken while it is indexed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        starts, sizes, lines = array("q"), array("q"), array("q")
        digest = hashlib.blake2b(digest_size=8)
        position = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    digest.update(line)
                    if line.strip() and line != BOM:
                        starts.append(position)
                        sizes.append(len(line))
                        lines.append(number)
                    position += len(line)
            self._file = path.open("rb")
        except OSError as error:
            raise ConfigError(f"data.sources: cannot read {path}: {error.strerror}") from None
        self._starts, self._sizes, self._lines = (np.frombuffer(column, np.int64) for column in (starts, sizes, lines))
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """The row's object. Raises BadRow when the line isn't one."""
        # A positioned read: threads and forked workers share the file without sharing a cursor.
        line = os.pread(self._file.fileno(), int(self._sizes[row]), int(self._starts[row]))
        try:
            value = json.loads(line.removeprefix(BOM).decode("utf-8"))
        except UnicodeDecodeError:
            raise BadRow("isn't UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise BadRow(f"isn't valid JSON ({error})") from None
        if not isinstance(value, dict):
            raise BadRow(f"must be a JSON object, got a {type(value).__name__}")
        return value

    def where(self, row: int) -> str:
        return f"{self.path}:{self._lines[row]}"


class JsonlFiles:
    """Several files, one after another."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = [JsonlFile(path) for path in paths]
        self._ends = np.cumsum([len(file) for file in self.files])
        names = "".join(f"{file.path.name}:{file.fingerprint};" for file in self.files)
        self.fingerprint = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        file, inside = self._find(row)
        return file[inside]

    def where(self, row: int) -> str:
        file, inside = self._find(row)
        return file.where(inside)

    def _find(self, row: int) -> tuple[JsonlFile, int]:
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self.files[number], row - int(self._ends[number]) + len(self.files[number])
