"""`redraft serve` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.server.fakes import until


@dataclass(frozen=True)
class Served:
    """url: where it listens. log: what it wrote to standard error."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        return lines(self.log)


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def served(log: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    """Started at a free port, and ready; killed if it is still there in the end."""
    command = [sys.executable, "-m", "redraft", "serve", *arguments]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stderr=stream, env={**os.environ, "REDRAFT_PORT": "0", "OMP_NUM_THREADS": "1", **environment}
        )

    def where() -> list[str]:
        if process.poll() is not None:
            raise AssertionError(log.read_text())
        return [line["message"].split()[-1] for line in lines(log) if line["message"].startswith("listening")]

    try:
        until(where, 120)
        url = where()[0]
        until(lambda: httpx.get(f"{url}/ready").status_code == 200, 300)
        yield Served(url, process, log)
    finally:
        process.kill()
        process.wait()
