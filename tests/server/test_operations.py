"""Loading, dying, stopping, leaving: what operators and impatient clients do."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.server.conftest import chat, frames
from tests.server.fakes import TOKENIZER, Live, live, until

from redraft.engine.async_engine import AsyncEngine, EngineSpec
from redraft.errors import CheckpointError, InvalidInput
from redraft.server import wire
from redraft.server.logs import JsonFormatter, PlainFormatter, log
from redraft.server.run import Server, serve
from redraft.server.service import Service
from redraft.server.settings import ServerSettings

CHAT = "/v1/chat/completions"


def test_until_the_model_is_there_it_says_so() -> None:
    with live(loads=False) as server, httpx.Client(base_url=server.url) as client:
        for path in ("/health", "/ready"):
            assert client.get(path).status_code == 503
        for path, body in ((CHAT, chat("a")), ("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})):
            answer = client.post(path, json=body)
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert answer.json()["error"]["code"] == "loading"
        assert client.get("/v1/models").status_code == 200


def test_when_the_engine_dies_everyone_is_told() -> None:
    with live() as server, httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(8) as pool:
        server.engine.gate.clear()
        bodies = [chat("a"), chat("a" * 99), chat("!forever", stream=True), chat("!forever"), chat("!crash")]
        calls = [pool.submit(httpx.post, f"{server.url}{CHAT}", json=body, timeout=60) for body in bodies]
        until(lambda: len(server.engine.submitted) == 5)
        server.engine.gate.set()
        answers = [call.result() for call in calls]
        assert [answer.status_code for answer in answers[3:]] == [503, 503]
        for answer in answers:
            told = frames(answer.text)[-2][1] if "event-stream" in answer.headers["content-type"] else answer.json()
            assert told["error"]["code"] == "engine_error"
        assert client.get("/health").status_code == 503
        answer = client.post(CHAT, json=chat("a"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_error")


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        serve(ServerSettings(model=str(tmp_path / "nothing"), port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_an_address_that_cannot_be_had_is_named(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"{host}.*{port}.*; choose another$") as caught:
            serve(ServerSettings(host=host, port=port))
        assert str(caught.value).count(str(port)) == 1


def test_an_engine_that_cannot_load_ends_the_server_with_its_reason() -> None:
    async def start(spec: EngineSpec) -> AsyncEngine:
        raise CheckpointError("a tensor is missing")

    server = Server(Service.of(ServerSettings(port=0), start))
    server.run()
    assert isinstance(server.failure, CheckpointError)
    assert str(server.failure) == "a tensor is missing"


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_a_client_that_goes_takes_its_request_along(server: Live, path: str, streamed: bool) -> None:
    body = {CHAT: chat("!forever"), "/v1/completions": {"prompt": "!forever"}, "/v1/responses": {"input": "!forever"}}
    before = len(server.engine.aborted)
    tokens = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    sent = body[path] | {"stream": streamed, tokens: 900, "redraft": {"events": True} if streamed else {}}
    server.engine.gate.clear()
    with httpx.Client(base_url=server.url) as client, suppress(httpx.ReadTimeout):
        count = len(server.engine.submitted)
        client.post(path, json=sent, timeout=httpx.Timeout(60, read=0.5))
        assert len(server.engine.submitted) == count + 1
    until(lambda: len(server.engine.aborted) > before)
    server.engine.gate.set()
    until(lambda: server.service._answers == 0)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_streams_that_were_left_leave_nothing(count: int) -> None:
    with live(max_running=64) as server:
        process = psutil.Process()

        async def leave(client: httpx.AsyncClient) -> None:
            body = chat("!forever", stream=True, max_tokens=900, redraft={"events": True})
            async with client.stream("POST", CHAT, json=body) as stream:
                async for _ in stream.aiter_bytes():
                    return

        async def many(streams: int) -> None:
            for _ in range(streams // 20):
                async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
                    await asyncio.gather(*(leave(client) for _ in range(20)))

        asyncio.run(many(40))
        until(lambda: server.service._answers == 0)
        files, threads = process.num_fds(), threading.active_count()
        asyncio.run(many(count))
        until(lambda: server.service._answers == 0 and not server.engine.busy)
        assert len(server.engine.aborted) == 40 + count
        until(lambda: process.num_fds() <= files)
        assert threading.active_count() <= threads


def test_an_answer_that_takes_too_long_is_cut() -> None:
    with live(request_seconds=0.5) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        server.engine.gate.clear()
        answer = client.post(CHAT, json=chat("a"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        server.engine.gate.set()
        body = chat("!forever", stream=True, redraft={"events": True})
        with client.stream("POST", CHAT, json=body) as stream:
            lines = stream.iter_lines()
            events = frames("\n".join(lines))
        assert events[-1] == (None, "[DONE]")
        assert events[-2][1]["error"]["code"] == "timeout"


def test_sigterm_lets_running_answers_finish() -> None:
    with live(drain_seconds=60) as server, ThreadPoolExecutor(8) as pool:
        text = "x " * 60
        server.engine.gate.clear()
        bodies = [chat(text, stream=number > 1) for number in range(4)]
        calls = [pool.submit(httpx.post, f"{server.url}{CHAT}", json=body, timeout=60) for body in bodies]
        until(lambda: len(server.engine.submitted) == 4)
        server.server.handle_exit(15, None)
        until(lambda: server.service.draining)
        server.engine.gate.set()
        answers = [call.result() for call in calls]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert answers[0].json()["choices"][0]["message"]["content"] == text
        assert frames(answers[3].text)[-1] == (None, "[DONE]")
        with pytest.raises(httpx.ConnectError):
            until(lambda: httpx.get(f"{server.url}/health").status_code == 0, 5)


@pytest.mark.parametrize(("seconds", "signals"), [(0.3, 1), (600, 2)])
def test_what_does_not_finish_in_time_is_cut_and_told(seconds: float, signals: int) -> None:
    """Nor what is running when the server is asked to stop for the second time."""
    with live(drain_seconds=seconds) as server, ThreadPoolExecutor(8) as pool:
        forever = chat("!forever", stream=True, redraft={"events": True})
        server.engine.gate.clear()
        calls = [pool.submit(httpx.post, f"{server.url}{CHAT}", json=chat("!forever"), timeout=60) for _ in range(3)]
        calls += [pool.submit(httpx.post, f"{server.url}{CHAT}", json=forever, timeout=60) for _ in range(3)]
        until(lambda: len(server.engine.submitted) == 6)
        for _ in range(signals):
            server.server.handle_exit(2, None)
        answers = [call.result() for call in calls]
        for answer in answers[:3]:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        for answer in answers[3:]:
            ends = frames(answer.text)
            assert ends[-1] == (None, "[DONE]") if answer.status_code == 200 else answer.status_code == 503


def test_a_long_wait_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch, server: Live) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.05)
    server.engine.gate.clear()
    with httpx.stream("POST", f"{server.url}{CHAT}", json=chat("a", stream=True), timeout=60) as stream:
        chunks = stream.iter_bytes()
        assert next(chunks) == wire.HEARTBEAT
        server.engine.gate.set()
        assert b"[DONE]" in b"".join(chunks)


def test_metrics_have_what_was_done() -> None:
    with live() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        client.post(CHAT, json=chat("x " * 60, n=2))
        client.post(CHAT, json=chat("a", nonsense=1))
        page = client.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        found = dict(re.findall(r"^(redraft_\S+) (\S+)$", page.text, re.MULTILINE))
        size = len(TOKENIZER.encode("x " * 60))
        assert float(found["redraft_generated_tokens_total"]) == 2 * (size + 1)
        assert float(found["redraft_first_block_seconds_count"]) == 1
        assert float(found["redraft_between_blocks_seconds_count"]) == 2 * (-(-(size + 1) // 32) - 1)
        assert found['redraft_answers_total{reason="stop"}'] == "2.0"
        assert found[f'redraft_requests_total{{route="{CHAT}",status="200"}}'] == "1.0"
        assert found[f'redraft_requests_total{{route="{CHAT}",status="400"}}'] == "1.0"
        names = (
            "queue running pages pages_free pages_cached forwards_total edits_total cache_hits_total preempted_total"
        )
        assert {f"redraft_{name}" for name in names.split()} <= found.keys()
        assert client.get("/nowhere/that/is").status_code == 404
        assert "nowhere" not in client.get("/metrics").text  # paths are not labels: they would be without end


@pytest.fixture
def logged() -> Any:
    """What the server logs, as objects."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    log.removeHandler(handler)
    log.setLevel(level)


def test_the_log_has_a_line_a_request_and_no_prompts(logged: Any) -> None:
    with live(api_keys=("secret-key-1",)) as server:
        headers = {"Authorization": "Bearer secret-key-1", "X-Request-ID": "abc"}
        httpx.post(f"{server.url}{CHAT}", json=chat("very private", user="u1"), headers=headers)
        httpx.post(f"{server.url}{CHAT}", json=chat("very private"))
        until(lambda: sum(line["message"] == "request" for line in logged()) == 2)
    lines = [line for line in logged() if line["message"] == "request"]
    assert lines[0] | {"time": "", "seconds": 0} == {
        "time": "", "level": "info", "message": "request", "request_id": "abc", "method": "POST", "path": CHAT,
        "status": 200, "seconds": 0, "client": "127.0.0.1", "key": 0, "user": "u1",
    }  # fmt: skip
    assert lines[1]["status"] == 401
    everything = json.dumps(logged())
    assert "private" not in everything
    assert "secret-key" not in everything


def test_in_a_terminal_the_log_is_plain() -> None:
    record = logging.makeLogRecord({"msg": "request", "method": "GET", "path": "/x", "status": 200, "seconds": 0.5})
    assert re.fullmatch(r"\d\d:\d\d:\d\d request GET /x 200 0.5 s", PlainFormatter().format(record))


def test_prompts_are_in_the_log_when_that_is_wanted(logged: Any) -> None:
    with live(log_prompts=True) as server:
        httpx.post(f"{server.url}{CHAT}", json=chat("shown"))
        until(lambda: any(line["message"] == "request" for line in logged()))
    (line,) = [line for line in logged() if line["message"] == "request"]
    assert line["prompt"] == [{"role": "user", "content": "shown"}]


def test_a_bug_is_a_500_without_its_text_and_with_a_traceback_in_the_log(
    logged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live() as server:
        monkeypatch.setattr(server.service, "fit", lambda *_, **__: 1 / 0)
        answer = httpx.post(f"{server.url}{CHAT}", json=chat("a"))
        assert answer.status_code == 500
        assert "zero" not in answer.text
        assert answer.headers["x-request-id"]
        until(lambda: any("ZeroDivisionError" in line.get("traceback", "") for line in logged()))


def test_the_description_of_the_api_works_offline(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("<!DOCTYPE html>", "")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for target in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert client.get(f"/{target}").status_code == 200
    assert "openapi.json" in client.get("/docs/start.js").text
    document = client.get("/openapi.json").json()
    assert "422" not in json.dumps(document["paths"][CHAT])
    assert document["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False


def test_models_and_version(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model == client.get("/v1/models/redraft-nano").json()
    assert model["id"] == "redraft-nano"
    assert abs(model["created"] - time.time()) < 3600
    assert client.get("/v1/models/other").status_code == 404
    assert re.fullmatch(r"\d+\.\d+\.\d+", client.get("/version").json()["version"])


def test_a_wrong_route_or_method_is_told_what_is_right(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completion", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no POST /v1/chat/completion; /docs lists what there is"
    answer = client.get(CHAT)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert answer.json()["error"]["message"] == f"{CHAT} takes POST, not GET"
    assert len(client.get(f"/{'a' * 5000}").json()["error"]["message"]) < 200


@pytest.mark.parametrize(("content", "kind"), [("[1]", "application/json"), ('{"messages": []}', "text/plain")])
def test_a_body_that_is_no_json_object(client: httpx.Client, content: str, kind: str) -> None:
    answer = client.post(CHAT, content=content, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("with the header Content-Type: application/json")


def test_tokens_and_text(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"text": "Hi 界"}).json()
    assert found["tokens"] == TOKENIZER.encode("Hi 界")
    assert found["count"] == len(found["texts"]) == len(found["tokens"])
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"text": "Hi 界"}
    messages = [{"role": "user", "content": "Hi"}]
    rendered = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert rendered == TOKENIZER.render_chat(messages)
    assert client.post("/tokenize", json={}).status_code == 400
    assert client.post("/detokenize", json={"tokens": [-1]}).status_code == 400
    assert client.post("/detokenize", json={"tokens": [2**31 - 1]}).json() == {"text": ""}
