"""`/v1/responses` over an engine that repeats what the user said."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.server.conftest import frames
from tests.server.fakes import TOKENIZER, Live, live, until

from redraft.server import store as storage
from redraft.server.store import Store, Stored

PATH = "/v1/responses"
LOOKUP = {
    "type": "function",
    "name": "lookup",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "lookup", "arguments": {"city": "Wien"}}</tool_call>'
TEXT = "A longer text that goes over more than one block of the canvas, and so comes in more than one piece."


def prompt_of(server: Live) -> str:
    return TOKENIZER.decode(server.engine.submitted[-1].prompt, skip_special=False)


def test_a_response(client: httpx.Client, server: Live) -> None:
    body = {"input": "Hello", "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5}
    answer = client.post(PATH, json=body).json()
    assert answer["object"] == "response"
    assert answer["status"] == "completed"
    assert answer["instructions"] == "Be brief."
    assert answer["metadata"] == {"a": "b"}
    assert answer["temperature"] == 0.5
    (item,) = answer["output"]
    assert item["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert answer["usage"]["output_tokens"] == len(TOKENIZER.encode("Hello")) + 1
    assert answer["usage"]["redraft"]["forwards"] == 2
    assert prompt_of(server).startswith("<role>SYSTEM</role>Be brief.<|role_end|>")
    assert client.get(f"{PATH}/{answer['id']}").json() == answer


def test_a_stream_tells_what_the_whole_response_is(client: httpx.Client) -> None:
    events = frames(client.post(PATH, json={"input": TEXT, "stream": True, "redraft": {"events": True}}).text)
    steps = [data for name, data in events if name == "canvas"]
    assert "".join(step["text"] for step in steps) == TEXT
    told = [data for name, data in events if name != "canvas"]
    assert [name for name, _ in events if name != "canvas"] == [data["type"] for data in told]
    assert [data["sequence_number"] for data in told] == list(range(len(told)))
    kinds = [data["type"].removeprefix("response.") for data in told]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    deltas = [data["delta"] for data in told if data["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == TEXT
    final = told[-1]["response"]
    assert final["output"] == [told[-2]["item"]]
    assert client.get(f"{PATH}/{final['id']}").json() == final


def test_calls_are_items(client: httpx.Client, server: Live) -> None:
    body = {"input": f"I look. {CALL}", "tools": [LOOKUP]}
    answer = client.post(PATH, json=body).json()
    message, call = answer["output"]
    assert message["content"][0]["text"] == "I look."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "lookup", '{"city": "Wien"}')
    told = [data for _, data in frames(client.post(PATH, json=body | {"stream": True}).text)]
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["message", "function_call"]
    done = [data for data in told if data["type"] == "response.function_call_arguments.done"]
    assert [data["arguments"] for data in done] == ['{"city": "Wien"}']
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    again = client.post(PATH, json={"input": [{"role": "user", "content": "Q"}, message, call, result]})
    assert again.status_code == 200, again.text
    assert "<role>TOOL</role>sunny" in prompt_of(server)
    assert f"I look.\n{CALL}<|role_end|>" in prompt_of(server)


def test_a_conversation_goes_on_without_its_instructions(client: httpx.Client, server: Live) -> None:
    first = client.post(PATH, json={"input": "one", "instructions": "Say it."}).json()
    second = client.post(PATH, json={"input": "two", "previous_response_id": first["id"]}).json()
    assert second["previous_response_id"] == first["id"]
    assert prompt_of(server) == (
        "<role>HUMAN</role>one<|role_end|><role>ASSISTANT</role>one<|role_end|>"
        "<role>HUMAN</role>two<|role_end|><role>ASSISTANT</role>"
    )
    gone = client.post(PATH, json={"input": "two", "previous_response_id": "resp_none"})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "previous_response_id")


def test_what_is_not_stored_is_not_there(client: httpx.Client) -> None:
    answer = client.post(PATH, json={"input": "one", "store": False}).json()
    assert client.get(f"{PATH}/{answer['id']}").status_code == 404


def test_background_retrieve_and_cancel(client: httpx.Client, server: Live) -> None:
    answer = client.post(PATH, json={"input": "one", "background": True}).json()
    assert answer["status"] == "queued"
    until(lambda: client.get(f"{PATH}/{answer['id']}").json()["status"] == "completed")
    forever = client.post(PATH, json={"input": "!forever", "background": True}).json()
    until(lambda: client.get(f"{PATH}/{forever['id']}").json()["status"] == "in_progress")
    before = len(server.engine.aborted)
    assert client.post(f"{PATH}/{forever['id']}/cancel").json()["status"] == "cancelled"
    until(lambda: len(server.engine.aborted) == before + 1)
    assert client.post(f"{PATH}/{answer['id']}/cancel").json()["status"] == "completed"
    sick = client.post(PATH, json={"input": "!sick", "background": True}).json()
    until(lambda: client.get(f"{PATH}/{sick['id']}").json()["status"] == "failed")
    assert client.get(f"{PATH}/{sick['id']}").json()["error"]["message"] == "logits are not finite"
    plain = client.post(PATH, json={"input": "one"}).json()
    assert client.post(f"{PATH}/{plain['id']}/cancel").status_code == 400


def test_an_answer_that_was_cut_is_incomplete(client: httpx.Client) -> None:
    answer = client.post(PATH, json={"input": "one two three", "max_output_tokens": 2}).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"


def test_logprobs_are_with_the_text(client: httpx.Client) -> None:
    body = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    (item,) = client.post(PATH, json=body).json()["output"]
    assert "".join(entry["token"] for entry in item["content"][0]["logprobs"]) == "Hi"
    assert all(len(entry["top_logprobs"]) == 1 for entry in item["content"][0]["logprobs"])


def test_a_response_is_that_of_its_key() -> None:
    with live(api_keys=("first-key", "second-key")) as server:
        one, other = ({"Authorization": f"Bearer {key}"} for key in ("first-key", "second-key"))
        made = httpx.post(f"{server.url}{PATH}", json={"input": "a"}, headers=one).json()
        assert httpx.get(f"{server.url}{PATH}/{made['id']}", headers=one).status_code == 200
        assert httpx.get(f"{server.url}{PATH}/{made['id']}", headers=other).status_code == 404


def test_the_store_keeps_the_newest_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, status: str = "completed", size: int = 0) -> Stored:
        return Stored({"id": name, "status": status, "x": "y" * size}, [], None)

    def there(kept: Store) -> list[str]:
        return list(kept._kept)

    kept = Store(2)
    for one in (made("a"), made("b", "in_progress"), made("c"), made("d")):
        kept.keep(one)
    assert there(kept) == ["b", "d"]
    monkeypatch.setattr(storage, "MAX_BYTES", 1000)
    kept.keep(made("e", size=900))
    assert there(kept) == ["b", "e"]
    assert kept._bytes == sum(one.size for one in kept._kept.values())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}, "text.format.name"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [LOOKUP], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOKUP | {"strict": True}]}, "tools[0].strict"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"background": True, "stream": True}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"messages": []}, "messages"),
        ({"seed": 3}, "seed"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "["}]}, "input[0].arguments"),
        ({"input": []}, "input"),
    ],
)
def test_what_is_not_done_is_refused_by_name(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = client.post(PATH, json={"input": "a"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_failed_stream_ends_with_that(client: httpx.Client, server: Live) -> None:
    with live(request_seconds=0.5) as own:
        body = {"input": "!forever", "stream": True}
        events = frames(httpx.post(f"{own.url}{PATH}", json=body, timeout=60).text)
        assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
        assert events[-2][1]["code"] == "timeout"
        assert events[-1][1]["response"]["status"] == "failed"
    query = client.get(f"{PATH}/resp_x", params={"stream": "true"})
    assert (query.status_code, query.json()["error"]["param"]) == (400, "stream")
