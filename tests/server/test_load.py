"""Many clients for a while, on the real model; and SIGTERM in the middle of it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from tests.server.conftest import chat
from tests.server.serving import Served, served

CHAT = "/v1/chat/completions"
CLIENTS = 64
SECONDS = float(os.environ.get("REDRAFT_TEST_LOAD_SECONDS", "300"))
FAST = {"mode": "speed", "max_post_steps": 2}


@dataclass
class Seen:
    """What the clients saw. between: seconds from a frozen block to the next. broken: endings that are none. stopped:
    when SIGTERM was sent; untaken: requests that came too late for the server to take them."""

    done: int = 0
    refused: int = 0
    cut: int = 0
    untaken: int = 0
    stopped: float = math.inf
    tokens: int = 0
    between: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


async def client(server: Served, number: int, seen: Seen, until: float) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as http:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            body = chat(f"{number} + {turn}?", stream=True, max_tokens=96, redraft=FAST)
            try:
                await ask(http, body | {"stream_options": {"include_usage": True}}, seen)
            except httpx.ConnectError as error:
                if seen.stopped == math.inf:
                    seen.broken.append(repr(error))
                return


async def ask(http: httpx.AsyncClient, body: dict, seen: Seen) -> None:
    last, ended, sent = 0.0, False, time.monotonic()
    try:
        async with http.stream("POST", CHAT, json=body) as stream:
            if stream.status_code in (429, 503):
                seen.refused += 1
                await stream.aread()
                await asyncio.sleep(float(stream.headers["retry-after"]))
                return
            if stream.status_code != 200:
                seen.broken.append(f"status {stream.status_code}: {await stream.aread()!r}")
                return
            async for line in stream.aiter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    data = json.loads(line[6:])
                    if "error" in data:
                        seen.cut += data["error"]["code"] == "shutting_down"
                        continue
                    if data["usage"]:
                        seen.done += 1
                        seen.tokens += data["usage"]["completion_tokens"]
                    elif data["choices"][0]["delta"].get("content"):
                        now = time.monotonic()
                        if last:
                            seen.between.append(now - last)
                        last = now
    except (httpx.RemoteProtocolError, httpx.ReadError) as error:
        if sent > seen.stopped - 1 and not last:  # a connection that was idle, or not accepted yet, is closed
            seen.untaken += 1
        else:
            seen.broken.append(repr(error))
        return
    if not ended:
        seen.broken.append("a stream without an end")


async def crowd(server: Served, seconds: float, seen: Seen, stop_after: float | None = None) -> None:
    until = time.monotonic() + seconds

    async def watch() -> None:
        process = psutil.Process(server.process.pid)
        while time.monotonic() < until and process.is_running():
            await asyncio.sleep(seconds / 20)
            if stop_after is None:
                seen.memory.append(sum(p.memory_info().rss for p in [process, *process.children(recursive=True)]))

    async def stop() -> None:
        if stop_after is not None:
            await asyncio.sleep(stop_after)
            seen.stopped = time.monotonic()
            server.process.send_signal(signal.SIGTERM)

    await asyncio.gather(*(client(server, number, seen, until) for number in range(CLIENTS)), watch(), stop())


def figures(seen: Seen, seconds: float) -> str:
    ordered = sorted(seen.between) or [0.0]
    middle, p95 = ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
    rise = f"{seen.memory[0] / 2**20:.0f} to {seen.memory[-1] / 2**20:.0f} MiB" if seen.memory else "not looked at"
    return (
        f"{CLIENTS} clients, {seconds:.0f} s: {seen.done} answers, {seen.refused} refused, {seen.tokens / seconds:.0f} "
        f"tokens/s, between blocks {middle:.2f} s median, {p95:.2f} s p95; memory {rise}"
    )


@pytest.mark.slow
def test_a_crowd_is_served_without_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = Seen()
    with served(tmp_path / "log", "--queue-limit", "32") as server:
        asyncio.run(crowd(server, SECONDS, seen))
        health = httpx.get(f"{server.url}/health")
    with capsys.disabled():
        print("\n" + figures(seen, SECONDS))
    assert seen.broken == []
    assert seen.done > CLIENTS
    assert seen.cut == 0
    assert health.status_code == 200
    third = len(seen.memory) // 3
    early, late = max(seen.memory[third : 2 * third]), max(seen.memory[2 * third :])
    assert late < 1.05 * early


@pytest.mark.slow
def test_sigterm_in_the_middle_of_it_ends_everybody_in_order(tmp_path: Path) -> None:
    seen = Seen()
    with served(tmp_path / "log", "--queue-limit", "64", "--drain-seconds", "3") as server:
        asyncio.run(crowd(server, 60, seen, stop_after=10))
        assert server.process.wait(60) == 0
        assert server.lines()[-1]["message"] == "stopped"
    assert seen.broken == []
    assert seen.cut > 0
