from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakes import FakeLLM, session

from redraft.cli.session import Session


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """The scripted model in the place of any checkpoint."""
    fake = FakeLLM()

    def load(*_: Any) -> Session:
        return session(fake)

    monkeypatch.setattr(Session, "load", load)
    return fake
