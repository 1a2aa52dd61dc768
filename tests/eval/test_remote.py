"""Servers are played by a function; the last test has the real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from eval_fakes import Capitals
from tests.server.serving import served

from redraft.engine.llm import LLM
from redraft.errors import InvalidInput, RemoteError
from redraft.eval.answer import LocalModel
from redraft.eval.records import RecordLog
from redraft.eval.remote import RemoteModel
from redraft.eval.runner import in_batches, run
from redraft.eval.settings import AS_SERVED, QUALITY, SPEED
from redraft.eval.suites import suite_named

URL = "http://server:8000"
ITEMS = Capitals().items()
Handler = Callable[[httpx2.Request], httpx2.Response]


def connect(handler: Handler, ours: bool = True, **options: Any) -> RemoteModel:
    def respond(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            cards = [{"id": "nano"}, {"id": "other"}]
            return httpx2.Response(200, json={"data": [card | ({"redraft": {}} if ours else {}) for card in cards]})
        return handler(request)

    return RemoteModel.connect(URL, transport=httpx2.MockTransport(respond), **options)


def canvas(text: str, frozen: bool, **more: Any) -> str:
    event = {"step": 1, "block": 2, "edited": {}, "frozen": frozen, "text": text, "time": 0.25}
    return f"event: canvas\ndata: {json.dumps(event | more)}\n\n"


def stream(*parts: str, reason: str = "stop") -> httpx2.Response:
    usage = {"completion_tokens": 7, "redraft": {"forwards": 3, "edits": 2}}
    last = [
        f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': reason}]})}\n\n",
        f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n",
        "data: [DONE]\n\n",
    ]
    headers = {"Content-Type": "text/event-stream"}
    return httpx2.Response(200, headers=headers, content="".join([*parts, *last]).encode())


def test_our_server_tells_forwards_edits_and_their_trace() -> None:
    asked = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        return stream(
            canvas("", False, edited={"12": ["x", "y"], "3": ["a", "b"]}), canvas("Par", True), canvas("is", True)
        )

    answers = connect(handler, key="secret").answer(ITEMS[:1], SPEED)
    assert asked == [
        {
            "model": "nano",
            "messages": ITEMS[0].messages,
            "max_tokens": 40,
            "temperature": 0.0,
            "stream": True,
            "redraft": {"events": True, "threshold": 0.5, "edit_threshold": 0.0},
        }
    ]
    answer = answers[0]
    assert (answer.text, answer.tokens, answer.forwards, answer.edits, answer.finish_reason) == (
        "Paris",
        7,
        3,
        2,
        "stop",
    )
    assert answer.trace == ((1, 2, 3, "a", "b"), (1, 2, 12, "x", "y"))
    assert answer.first_block_seconds == 0.25 and answer.seconds > 0


def test_another_server_is_taken_as_it_is() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        assert "redraft" not in json.loads(request.content)
        call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
        message = {"content": "Hm. ", "tool_calls": [call]}
        body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"completion_tokens": 9}}
        return httpx2.Response(200, json=body)

    model = connect(handler, ours=False, name="other", concurrency=3)
    assert model.identity == f"other at {URL}"
    answers = model.answer(ITEMS, AS_SERVED)
    assert {answer.text for answer in answers} == {
        'Hm. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    }
    assert {(answer.tokens, answer.forwards) for answer in answers} == {(9, 0)}
    with pytest.raises(InvalidInput, match="settings must be as-served"):
        model.answer(ITEMS, QUALITY)


def test_a_refused_prompt_is_an_error_of_its_answer() -> None:
    model = connect(lambda request: httpx2.Response(400, json={"error": {"message": "too long"}}))
    assert [answer.error for answer in model.answer(ITEMS, SPEED)] == ["refused: too long"] * 3


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx2.Response(500, json={"error": {"message": "a bug"}}), "answered 500: a bug"),
        (httpx2.Response(200, content=b"event: canvas\ndata: {}\n\n"), "no answer of a chat"),
        (httpx2.Response(200, content=b'data: {"error": {"message": "gone"}}\n\n'), "gone"),
        (httpx2.Response(200, content=b""), "broke off"),
    ],
)
def test_a_server_that_fails_ends_the_run(response: httpx2.Response, words: str) -> None:
    response.headers["Content-Type"] = "text/event-stream"
    with pytest.raises(RemoteError, match=words):
        connect(lambda request: response).answer(ITEMS[:1], SPEED)


@pytest.mark.parametrize("url", ["nowhere", "ftp://a", "http://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidInput, match="url must be an address"):
        RemoteModel.connect(url)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="model must be one of nano, other"):
        connect(lambda request: httpx2.Response(200), name="third")


@pytest.mark.slow
def test_scores_over_http_are_those_in_this_process(tmp_path: Path) -> None:
    suite = suite_named("skills", seed=3, limit=1)
    items = suite.items()
    with RecordLog(tmp_path / "a.jsonl") as log:
        local = LocalModel(LLM(device="cpu", dtype="float64"), "m", traced=True)
        here = run(items, (QUALITY, SPEED), "m", log, in_batches(local, suite))
    with served(tmp_path / "log", "--dtype", "float64") as server, RecordLog(tmp_path / "b.jsonl") as log:
        remote = RemoteModel.connect(server.url)
        there = run(items, (QUALITY, SPEED), remote.identity, log, in_batches(remote, suite))
    assert [(r.item, r.setting, r.response, r.score, r.tokens, r.forwards, r.edits, r.trace) for r in here] == [
        (r.item, r.setting, r.response, r.score, r.tokens, r.forwards, r.edits, r.trace) for r in there
    ]
