"""`/v1/completions` over an engine that repeats its prompt."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.server.conftest import frames
from tests.server.fakes import TOKENIZER, Live, until

PATH = "/v1/completions"


def test_prompts_of_every_kind(client: httpx.Client, server: Live) -> None:
    ids = TOKENIZER.encode("of ids")
    for prompt, texts in (
        ("one text", ["one text"]),
        (["two", "texts"], ["two", "texts"]),
        (ids, ["of ids"]),
        ([ids, ids[:1]], ["of ids", TOKENIZER.decode(ids[:1])]),
    ):
        answer = client.post(PATH, json={"prompt": prompt}).json()
        assert answer["object"] == "text_completion"
        assert [choice["text"] for choice in answer["choices"]] == texts
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert server.engine.submitted[-1].params.max_tokens == 16
    usage = client.post(PATH, json={"prompt": ["two", "texts"], "n": 2}).json()["usage"]
    sizes = [len(TOKENIZER.encode(text)) for text in ("two", "texts")]
    assert usage["prompt_tokens"] == sum(sizes)
    assert usage["completion_tokens"] == 2 * sum(size + 1 for size in sizes)


def test_echo_and_order_of_choices(client: httpx.Client) -> None:
    body = {"prompt": ["ab", "cd"], "n": 2, "echo": True}
    assert [choice["text"] for choice in client.post(PATH, json=body).json()["choices"]] == ["abab"] * 2 + ["cdcd"] * 2
    events = frames(client.post(PATH, json=body | {"stream": True}).text)
    texts = [""] * 4
    for _, data in events[:-1]:
        for choice in data["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["abab"] * 2 + ["cdcd"] * 2


def test_a_stream_with_canvases_and_usage(client: httpx.Client) -> None:
    body = {"prompt": ["ab", "cd"], "stream": True, "redraft": {"events": True}}
    events = frames(client.post(PATH, json=body).text)
    assert {data["choice"] for name, data in events if name == "canvas"} == {0, 1}
    assert events[-1][1] == "[DONE]"
    assert events[-2][1]["usage"]["redraft"]["forwards"] == 4
    ends = [c["finish_reason"] for name, d in events[:-2] if name is None for c in d["choices"] if c["finish_reason"]]
    assert ends == ["stop", "stop"]


def test_logprobs_in_four_lists(client: httpx.Client) -> None:
    (choice,) = client.post(PATH, json={"prompt": "Hi there", "logprobs": 2}).json()["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == "Hi there"
    assert found["token_logprobs"] == [-0.5] * len(found["tokens"])
    assert all(set(top.values()) == {-0.5, -2.0} for top in found["top_logprobs"])
    assert [choice["text"][at:].startswith(t) for at, t in zip(found["text_offset"], found["tokens"], strict=True)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 0}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": None}, "prompt"),
        ({"messages": []}, "messages"),
        ({"stream_options": {}}, "stream_options"),
        ({"redraft": {"events": True}}, "redraft.events"),
    ],
)
def test_what_is_not_done_is_refused_by_name(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = client.post(PATH, json={"prompt": "a"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_an_error_of_one_prompt_ends_the_others(client: httpx.Client, server: Live) -> None:
    body = {"prompt": ["!forever", "!sick"], "max_tokens": 900}
    before = len(server.engine.aborted)
    assert client.post(PATH, json=body).status_code == 503
    until(lambda: len(server.engine.aborted) == before + 1)
    answer = client.post(PATH, json=body | {"stream": True})
    assert answer.status_code == 503 or frames(answer.text)[-2][1]["error"]["code"] == "engine_error"
    until(lambda: len(server.engine.aborted) == before + 2)
