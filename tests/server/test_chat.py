"""`/v1/chat/completions` over an engine that repeats what the user said."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.conftest import chat, frames
from tests.server.fakes import TOKENIZER, Live

CHAT = "/v1/chat/completions"
TEXT = "Sort: 5, 2 and 9.\nThen 界 and ö, again and again and again and again and again and again."
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>{"name": "lookup", "arguments": {"city": "Österreich"}}</tool_call>'


def streamed(client: httpx.Client, body: dict[str, Any]) -> list[tuple[str | None, Any]]:
    answer = client.post(CHAT, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return frames(answer.text)


def text_of(events: list[tuple[str | None, Any]], index: int = 0) -> str:
    chunks = [data for name, data in events if name is None and data != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_an_answer(client: httpx.Client, server: Live) -> None:
    answer = client.post(CHAT, json=chat(TEXT, model="redraft-nano")).json()
    size = len(TOKENIZER.encode(TEXT))
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "redraft-nano"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = answer["usage"]
    assert usage["completion_tokens"] == size + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + size + 1
    assert usage["prompt_tokens_details"] == {"cached_tokens": usage["prompt_tokens"] // 32 * 32}
    blocks = -(-(size + 1) // 32)
    assert usage["redraft"] == {
        "forwards": 2 * blocks, "tokens_per_forward": round((size + 1) / 2 / blocks, 4), "edits": blocks
    }  # fmt: skip
    assert server.engine.submitted[-1].params.max_tokens == 1024 - usage["prompt_tokens"]  # what the context leaves


def test_a_stream_has_roles_text_of_blocks_an_end_and_usage(client: httpx.Client) -> None:
    whole = client.post(CHAT, json=chat(TEXT)).json()
    events = streamed(client, chat(TEXT, stream_options={"include_usage": True}))
    assert all(name is None for name, _ in events)
    *chunks, end = [data for _, data in events]
    assert end == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert text_of(events) == TEXT
    assert chunks[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    plain = streamed(client, chat(TEXT))
    assert all("usage" not in data for _, data in plain[:-1])


def test_the_canvas_has_a_channel_of_its_own(client: httpx.Client) -> None:
    events = streamed(client, chat(TEXT, redraft={"events": True}))
    steps = [data for name, data in events if name == "canvas"]
    ids = TOKENIZER.encode(TEXT)
    assert [(step["block"], step["step"], step["frozen"]) for step in steps] == [
        (block, step, step == 2) for block in range(-(-(len(ids) + 1) // 32)) for step in (1, 2)
    ]
    first, second = steps[:2]
    assert first["masked"] == list(range(16, 32))
    assert first["drafted"] == list(range(16))
    assert first["texts"][:16] == [TOKENIZER.decode([token]) for token in ids[:16]]
    assert second["ids"] == ids[:32]
    assert second["edited"] == {"0": ["<|mask|>", TOKENIZER.decode(ids[:1])]}
    assert second["confidence"] == [0.5] * 32
    assert "".join(step["text"] for step in steps) == text_of(events) == TEXT
    assert first["choice"] == 0
    assert 0 <= first["time"] <= second["time"]
    usage = events[-2][1]["usage"]
    assert usage["redraft"]["forwards"] == len(steps)


def test_events_need_a_stream(client: httpx.Client) -> None:
    refused(client, chat("a", redraft={"events": True}), "redraft.events")


def test_fields_reach_the_engine_under_their_names(client: httpx.Client, server: Live) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "seed": 7, "max_completion_tokens": 40, "stop": ["x", "yz"], "n": 2,
        "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": -2}, "presence_penalty": 0.25,
        "frequency_penalty": -0.25, "user": "somebody",
    }  # fmt: skip
    own = {
        "mode": "speed", "threshold": 0.4, "edit_threshold": 0.3, "max_post_steps": 5, "mbe_blocks": 1, "mbe_steps": 2,
        "mbe_edit_threshold": 0.2, "top_k": 10, "stutter_penalty": 1.5, "min_unmask": 2,
    }  # fmt: skip
    assert client.post(CHAT, json=chat("Hello", **fields, redraft=own)).status_code == 200
    params = server.engine.submitted[-1].params
    assert {name: getattr(params, name) for name in own} == own
    assert (params.temperature, params.top_p, params.seed, params.max_tokens) == (0.5, 0.9, 7, 40)
    assert (params.stop, params.n, params.logprobs, params.logit_bias) == (("x", "yz"), 2, 3, {5: -2.0})
    assert (params.presence_penalty, params.frequency_penalty) == (0.25, -0.25)


def test_null_is_silence(client: httpx.Client, server: Live) -> None:
    names = ["max_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "logprobs", "logit_bias", "tools"]
    names += ["response_format", "tool_choice", "user", "redraft", "functions", "prediction", "store", "metadata"]
    assert client.post(CHAT, json=chat("Hello", **dict.fromkeys(names))).status_code == 200
    assert server.engine.submitted[-1].params.temperature == 0.0


def test_several_choices_in_one_stream(client: httpx.Client) -> None:
    events = streamed(client, chat(TEXT, n=3))
    assert [text_of(events, index) for index in range(3)] == [TEXT] * 3
    ends = [c for _, data in events[:-1] for c in data["choices"] if c["finish_reason"]]
    assert [choice["index"] for choice in ends] == [0, 1, 2]
    whole = client.post(CHAT, json=chat(TEXT, n=3)).json()
    assert [choice["message"]["content"] for choice in whole["choices"]] == [TEXT] * 3


def test_logprobs_are_of_the_tokens_of_the_text(client: httpx.Client) -> None:
    body = chat("Hi 界!", logprobs=True, top_logprobs=2)
    found = client.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert bytes(value for entry in found for value in entry["bytes"]).decode() == "Hi 界!"
    assert [entry["logprob"] for entry in found] == [-0.5] * len(found)
    assert all(len(entry["top_logprobs"]) == 2 for entry in found)
    events = streamed(client, body)
    parts = [c["logprobs"]["content"] for _, data in events[:-1] for c in data["choices"] if c["logprobs"]]
    assert parts == [found]
    bare = client.post(CHAT, json=chat("Hi", logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[]] * len(bare)


def test_stop_and_length(client: httpx.Client) -> None:
    (choice,) = client.post(CHAT, json=chat("one two three", stop="two")).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one ", "stop")
    (choice,) = client.post(CHAT, json=chat("one two three", max_tokens=2)).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert "one two three".startswith(choice["message"]["content"])


def test_a_call_of_a_tool(client: httpx.Client, server: Live) -> None:
    body = chat(f"I look.\n{CALL}\n{CALL}", tools=[LOOKUP], tool_choice="auto", parallel_tool_calls=True)
    (choice,) = client.post(CHAT, json=body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    one, two = choice["message"]["tool_calls"]
    assert one["function"] == two["function"] == {"name": "lookup", "arguments": '{"city": "Österreich"}'}
    assert one["id"] != two["id"]
    prompt = TOKENIZER.decode(server.engine.submitted[-1].prompt, skip_special=False)
    assert "lookup(city: string)" in prompt
    events = streamed(client, body)
    assert text_of(events) == "I look."
    deltas = [c["delta"]["tool_calls"][0] for _, d in events[:-1] for c in d["choices"] if "tool_calls" in c["delta"]]
    assert [(delta["index"], delta["function"]) for delta in deltas] == [(0, one["function"]), (1, one["function"])]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "lookup", "arguments": {"town": "Wien"}}</tool_call>',  # doesn't fit the schema
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "lookup"</tool_call> and more',
        '<tool_call>{"name": "lookup", "arguments": {"city": "Wien"}}',  # cut
        "a < b, <tool_cal",
        "ends in white space \n",
    ],
)
def test_what_is_no_call_is_text(client: httpx.Client, text: str) -> None:
    (choice,) = client.post(CHAT, json=chat(text, tools=[LOOKUP])).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert text_of(streamed(client, chat(text, tools=[LOOKUP]))) == text


def test_tool_choice_none_leaves_tools_out(client: httpx.Client, server: Live) -> None:
    (choice,) = client.post(CHAT, json=chat(CALL, tools=[LOOKUP], tool_choice="none")).json()["choices"]
    assert choice["message"]["content"] == CALL
    assert "lookup(" not in TOKENIZER.decode(server.engine.submitted[-1].prompt)


def test_a_conversation_with_calls_is_written_by_the_template(client: httpx.Client, server: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"city":"Wien"}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "lookup", "content": "sunny"},
        {"role": "user", "content": "Thanks"},
    ]
    assert client.post(CHAT, json={"messages": messages}).status_code == 200
    assert TOKENIZER.decode(server.engine.submitted[-1].prompt, skip_special=False) == (
        "<role>SYSTEM</role>Be brief.<|role_end|><role>HUMAN</role>Weather?<|role_end|>"
        '<role>ASSISTANT</role><tool_call>{"name": "lookup", "arguments": {"city": "Wien"}}</tool_call><|role_end|>'
        "<role>TOOL</role>sunny<|role_end|><role>HUMAN</role>Thanks<|role_end|><role>ASSISTANT</role>"
    )


def refused(client: httpx.Client, body: dict[str, Any], param: str | None, status: int = 400, part: str = "") -> str:
    answer = client.post(CHAT, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert part in error["message"]
    return error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"store": True}, "store"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"tools": [LOOKUP], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOKUP], "tool_choice": {"type": "function", "function": {"name": "lookup"}}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]},
         "tools[0].function.parameters"),
        ({"tools": [LOOKUP, LOOKUP]}, "tools[1].function"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"guided_json": {}}, "guided_json"),
        ({"redraft": {"steps": 2}}, "redraft.steps"),
        ({"redraft": {"mbe_edit_threshold": 0.5}}, "redraft.mbe_edit_threshold"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, None),
        ({"temperature": "0.5"}, "temperature"),
        ({"n": True}, "n"),
        ({"max_tokens": 2.0}, "max_tokens"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(client: httpx.Client, fields: dict[str, Any], param: str | None) -> None:
    message = refused(client, chat("a") | fields, param)
    if param is not None:
        assert param.split(".")[-1].split("[")[0] in message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]},
         "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": "a", "name": "Max"}, "messages[0].name"),
        ({"role": "robot", "content": "a"}, "messages[0]"),
        ({"role": "assistant"}, "messages[0]"),
        ({"role": "tool", "content": "x", "tool_call_id": "nobody"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
    ],
)  # fmt: skip
def test_messages_are_refused_by_name(client: httpx.Client, message: dict[str, Any], param: str | None) -> None:
    answer = client.post(CHAT, json={"messages": [message]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param, error


def test_another_model_is_not_there(client: httpx.Client) -> None:
    refused(client, chat("a", model="gpt-4o"), "model", 404, "'redraft-nano'")


def test_a_prompt_that_is_too_long_is_told_with_both_lengths(client: httpx.Client) -> None:
    message = refused(client, chat("a b " * 700), "messages", part="1024")
    size = len(TOKENIZER.render_chat([{"role": "user", "content": "a b " * 700}]))
    assert str(size) in message
    refused(client, chat("a", max_tokens=1021), "messages", part="max_tokens can be at most")


def test_an_error_of_the_engine_is_an_http_error_or_the_end_of_a_stream(client: httpx.Client) -> None:
    answer = client.post(CHAT, json=chat("!sick"))
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "logits are not finite")
    assert client.post(CHAT, json=chat("!sick", stream=True)).status_code == 503


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=120), data=st.data())
def test_a_stream_joined_is_the_whole_text(client: httpx.Client, text: str, data: st.DataObject) -> None:
    """Stops across blocks, and characters of several bytes: the parrot's blocks end anywhere."""
    at = data.draw(st.integers(0, len(text) - 1))
    stops = data.draw(st.lists(st.just(text[at : at + 3]), max_size=1)) + data.draw(st.lists(st.text(max_size=3)))
    repeated = text * data.draw(st.integers(1, 3))
    fields = {"stop": [stop for stop in stops if stop][:16], "max_tokens": data.draw(st.integers(1, 200))}
    tools = data.draw(st.sampled_from([{}, {"tools": [LOOKUP]}]))
    body = chat(repeated, **fields, **tools)
    answer = client.post(CHAT, json=body)
    if answer.status_code != 200:  # too long together
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        return
    (choice,) = answer.json()["choices"]
    events = streamed(client, body)
    assert text_of(events) == (choice["message"]["content"] or "")
    ends = [c["finish_reason"] for _, d in events[:-1] for c in d["choices"] if c["finish_reason"]]
    assert ends == [choice["finish_reason"]]
