from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redraft.text.build import train_tokenizer
from redraft.text.tokenizer import Tokenizer

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(
        ["Max has 3 apples. Ann has a cat. Who? Ann", "def add(a, b):\n    return a + b\n"] * 4, 400, folder
    )
    return Tokenizer.load(folder)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows, or lines of text, to a JSONL file."""

    def write(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write
