"""Conversations with a server, whose side is played by a function; tests/server has the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from fakes import SCRIPT, WORDS

from redraft.cli.remote import RemoteSession, fields
from redraft.cli.view import ViewState
from redraft.errors import InvalidInput, RemoteError

URL = "http://server:8000"
CARD = {"data": [{"id": "nano", "object": "model", "redraft": {"special_ids": [0, 1]}}]}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 7,
    "total_tokens": 10,
    "redraft": {"forwards": 5, "tokens_per_forward": 1.4, "edits": 1},
}
Handler = Callable[[httpx2.Request], httpx2.Response]


def canvas(number: int, **changes: Any) -> str:
    """Step `number` of the script as a message of the canvas channel."""
    tokens, masked, drafted, edited, frozen, text = SCRIPT[number]
    event = {
        "choice": 0,
        "step": number,
        "block": 0 if number < 4 else 1,
        "ids": tokens,
        "texts": [WORDS[token] for token in tokens],
        "confidence": (0.99, 0.6, 0.3, 0.95),
        "masked": masked,
        "drafted": drafted,
        "edited": {position: [WORDS[old], WORDS[tokens[position]]] for position, old in edited.items()},
        "deleted": [],
        "inserted": [],
        "prompt": [],
        "frozen": frozen,
        "text": text,
        "time": number / 10,
    }
    return f"event: canvas\ndata: {json.dumps(event | changes)}\n\n"


def chunk(reason: str | None = None, usage: dict[str, Any] | None = None, **delta: str) -> str:
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': choices, 'usage': usage})}\n\n"


def whole() -> list[str]:
    """The stream of a whole answer, as a server sends it: a text chunk follows the event that froze its block."""
    events = [chunk(role="assistant", content=""), *(canvas(number) for number in range(5))]
    events.insert(5, chunk(content="Max has "))
    return [*events, chunk(content="5界"), chunk("stop"), chunk(usage=USAGE), "data: [DONE]\n\n"]


def connect(stream: list[str] | httpx2.Response, seen: list[httpx2.Request] | None = None) -> RemoteSession:
    def handle(request: httpx2.Request) -> httpx2.Response:
        if seen is not None:
            seen.append(request)
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json=CARD)
        if isinstance(stream, httpx2.Response):
            return stream
        return httpx2.Response(200, content="".join(stream), headers={"content-type": "text/event-stream"})

    return RemoteSession.connect(URL, "secret", httpx2.MockTransport(handle))


def answer(stream: list[str] | httpx2.Response) -> ViewState:
    server = connect(stream)
    state = ViewState(special_ids=server.special_ids)
    for frame in server.reply([{"role": "user", "content": "Max?"}], {}):
        state.feed(frame)
    return state


def test_frames_are_those_of_a_model_here() -> None:
    from fakes import frames as local

    coming = list(connect(whole()).reply([{"role": "user", "content": "Max?"}], {}))
    records: list[dict[str, Any]] = [frame.to_json() | {"seconds": 0} for frame in coming]
    expected: list[dict[str, Any]] = [frame.to_json() | {"seconds": 0} for frame in local()]
    records[-1]["finish"]["seconds"] = expected[-1]["finish"]["seconds"] = 0.4
    assert records == expected
    assert [frame.seconds for frame in coming] == [0.0, 0.1, 0.2, 0.3, 0.4]


def test_the_answer_and_its_costs() -> None:
    state = answer(whole())
    assert (state.text, state.token_ids) == ("Max has 5界", [2, 3, 4, 3, 6, 8, 1])
    assert state.summary() == "steps 5 · tokens 7 · TPF 1.40 · TPS 18 · edits 1"
    assert state.special_ids == {0, 1}


def test_what_is_asked() -> None:
    seen: list[httpx2.Request] = []
    server = connect(whole(), seen)
    given = {"mode": "speed", "max_tokens": 40, "top_k": 5, "stop": ["."]}
    list(server.reply([{"role": "user", "content": "Max?"}], given))
    assert [str(request.url) for request in seen] == [f"{URL}/v1/models", f"{URL}/v1/chat/completions"]
    assert all(request.headers["authorization"] == "Bearer secret" for request in seen)
    assert json.loads(seen[1].content) == {
        "model": "nano",
        "messages": [{"role": "user", "content": "Max?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 40,
        "stop": ["."],
        "redraft": {"events": True, "mode": "speed", "top_k": 5},
    }


def test_no_setting_is_sent_that_was_not_given() -> None:
    assert fields({}) == {"redraft": {"events": True}}


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}/v1", f"{URL}/v1/"])
def test_the_address_may_be_that_of_the_page_or_of_the_api(url: str) -> None:
    asked: list[str] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(200, json=CARD)

    assert RemoteSession.connect(url, transport=httpx2.MockTransport(handle)).url == URL
    assert asked == ["/v1/models"]


def test_a_frame_is_shown_before_the_next_comes_unless_it_froze_a_block() -> None:
    """The stream is read no further than it must be."""
    taken = 0

    def stream() -> Any:
        nonlocal taken
        for message in whole():
            taken += 1
            yield message.encode()

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json=CARD)
        return httpx2.Response(200, content=stream(), headers={"content-type": "text/event-stream"})

    server = RemoteSession.connect(URL, transport=httpx2.MockTransport(handle))
    coming = server.reply([{"role": "user", "content": "Max?"}], {})
    next(coming)
    assert taken == 2
    next(coming)
    assert taken == 3
    coming.close()


def test_an_answer_that_was_cut_ends_with_the_block_as_it_is() -> None:
    state = answer([canvas(0), canvas(1), chunk("abort"), chunk(usage=USAGE), "data: [DONE]\n\n"])
    assert state.finish is not None and state.finish.reason == "abort"
    assert [cell.status for cell in state.cells] == ["settled"] * 4
    assert state.text == ""


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ([canvas(0)], "broke off"),
        (['data: {"error": {"message": "out of pages"}}\n\n'], "out of pages"),
        ([chunk("stop"), "data: [DONE]\n\n"], "without canvas events"),
        ([canvas(4), chunk("stop"), "data: [DONE]\n\n"], "without canvas events or usage"),
        ([canvas(0, masked=[9])], "masked"),
        ([canvas(0, texts=None)], "texts"),
        ([canvas(0, edited=[1])], "no answer of"),
        (["data: hello\n\n"], "no answer of"),
        (["data: {}\n\n"], "choices"),
        (['data: {"error": "plain"}\n\n'], "no answer of"),
        ([canvas(4), chunk("stop"), chunk(usage={"prompt_tokens": 1}), "data: [DONE]\n\n"], "completion_tokens"),
        (httpx2.Response(200, json={}), "text/event-stream"),
        (httpx2.Response(400, json={"error": {"message": "top_k must be"}}), "400: top_k must be"),
        (httpx2.Response(502, text="<html>"), "502: <html>"),
        (httpx2.Response(503), "503: Service Unavailable"),
    ],
)
def test_what_goes_wrong_is_a_remote_error(stream: list[str] | httpx2.Response, said: str) -> None:
    with pytest.raises(RemoteError, match=said) as caught:
        answer(stream)
    assert URL in str(caught.value)


def test_a_connection_that_breaks_in_an_answer() -> None:
    def broken() -> Iterator[bytes]:
        yield "".join(whole()[:3]).encode()
        raise httpx2.RemoteProtocolError("peer closed connection")

    response = httpx2.Response(200, content=broken(), headers={"content-type": "text/event-stream"})
    with pytest.raises(RemoteError, match="broke off in the middle of the answer: peer closed connection"):
        answer(response)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (
            httpx2.Response(401, json={"error": {"message": "a key is needed"}}),
            "401: a key is needed; --key or REDRAFT_API_KEY",
        ),
        (httpx2.Response(200, json={"data": []}), "no answer of"),
        (httpx2.Response(200, text="<html>"), "no answer of"),
        (httpx2.Response(200, json=[1]), "no answer of"),
    ],
)
def test_a_server_that_is_none_is_seen_at_once(response: httpx2.Response, said: str) -> None:
    with pytest.raises(RemoteError, match=said):
        RemoteSession.connect(URL, transport=httpx2.MockTransport(lambda request: response))


def test_nobody_there() -> None:
    with pytest.raises(RemoteError, match=r"cannot talk to http://127\.0\.0\.1:9: .* `redraft serve` running"):
        RemoteSession.connect("http://127.0.0.1:9")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(InvalidInput, match=r"redraft\[serve\]"):
        RemoteSession.connect(URL)
