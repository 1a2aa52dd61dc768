"""One server over a parrot for the tests of a file, and clients of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.fakes import Live, live


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """A request that makes the parrot say this."""
    return {"messages": [{"role": "user", "content": text}]} | fields


def frames(text: str) -> list[tuple[str | None, Any]]:
    """Server-sent events as (name, data)."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name = next((line[7:] for line in lines if line.startswith("event: ")), None)
            data = "\n".join(line[6:] for line in lines if line.startswith("data: "))
            found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found
