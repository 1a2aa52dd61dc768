from __future__ import annotations

from pathlib import Path

import pytest

from redraft.text.build import train_tokenizer
from redraft.text.tokenizer import Tokenizer

TEXTS = [
    "Max has 3 apples and gives 12 to Ann. Answer: 15",
    'Make JSON: {"name": "Max", "age": 31, "city": "Rome"}',
    "def add(a, b):\n    return a + b\n",
    "def double(x):\n    return x * 2\n",
    "Ann has a cat. Max has a dog. Who has a cat? Ann",
] * 4


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, 400, path)
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)
