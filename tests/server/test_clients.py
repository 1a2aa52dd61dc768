"""Clients that people have, against `redraft serve` with the embedded model, each in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.server.fakes import Live, until
from tests.server.serving import served

KEY = "test-key-0001"
ASK: Any = [{"role": "user", "content": "Max has 5 apples and buys 3 more. How many apples does Max have?"}]
FAST: Any = {"redraft": {"mode": "speed", "max_post_steps": 2}}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running server, which in the end must stop in order."""
    log = tmp_path_factory.mktemp("serve") / "log"
    with served(log, "--drain-seconds", "5", REDRAFT_API_KEYS=KEY) as server:
        yield server.url
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert server.lines()[-1]["message"] == "stopped"
        assert "apples" not in log.read_text()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=300, max_retries=0) as made:
        yield made


def test_openai_chat_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="redraft-nano", messages=ASK, max_tokens=40, extra_body=FAST)
    assert whole.choices[0].message.content
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage is not None
    assert whole.usage.redraft["forwards"] > 0  # type: ignore[attr-defined]
    stream = client.chat.completions.create(
        model="redraft-nano", messages=ASK, max_tokens=40, extra_body=FAST, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    with client.chat.completions.stream(model="redraft-nano", messages=ASK, max_tokens=40, extra_body=FAST) as events:
        assert events.get_final_completion().choices[0].message.content == text


def test_openai_sees_canvases_as_chunks_of_their_own_kind(client: openai.OpenAI) -> None:
    body = {"redraft": FAST["redraft"] | {"events": True}}
    chunks = client.chat.completions.create(
        model="redraft-nano", messages=ASK, max_tokens=16, stream=True, extra_body=body
    )
    kinds = [chunk.object for chunk in chunks]
    assert set(kinds) == {"chat.completion.chunk", "redraft.canvas"}


def test_openai_logprobs_n_and_seed(client: openai.OpenAI) -> None:
    def ask() -> Any:
        return client.chat.completions.create(
            model="redraft-nano", messages=ASK, max_tokens=8, n=3, temperature=1.5, seed=11, logprobs=True,
            top_logprobs=2, extra_body=FAST,
        ).choices  # fmt: skip

    choices = ask()
    assert [choice.index for choice in choices] == [0, 1, 2]
    for choice in choices:
        entries = choice.logprobs.content
        assert bytes(b for entry in entries for b in entry.bytes).decode("utf-8", "replace") == choice.message.content
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
    assert [choice.message.content for choice in ask()] == [choice.message.content for choice in choices]


def test_openai_tools_are_offered_and_a_conversation_with_calls_goes_on(client: openai.OpenAI) -> None:
    """What the small model makes of them is its own affair; that calls come out is tested in test_chat.py."""
    tools: Any = [{"type": "function", "function": WEATHER}]
    call: Any = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages: Any = [
        {"role": "user", "content": "What is the weather in Rome?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    for conversation in (messages[:1], messages):
        answer = client.chat.completions.create(
            model="redraft-nano", messages=conversation, tools=tools, tool_choice="auto", max_tokens=48, extra_body=FAST
        )
        choice = answer.choices[0]
        assert choice.message.content is not None or choice.message.tool_calls
        for made in choice.message.tool_calls or []:
            assert made.type == "function"
            assert "city" in json.loads(made.function.arguments)
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.chat.completions.create(model="redraft-nano", messages=ASK, tools=tools, tool_choice="required")


def test_openai_reads_calls_whole_and_streamed(server: Live) -> None:
    """From an engine that repeats the user's words, so that there is a call for certain."""
    text = 'I look.\n<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    fields: Any = {
        "model": "redraft-nano",
        "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": WEATHER}],
    }
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as parrot:
        whole = parrot.chat.completions.create(**fields).choices[0]
        with parrot.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})


def test_openai_errors_have_their_classes(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="redraft-nano"):
        client.chat.completions.create(model="gpt-4o", messages=ASK)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="redraft-nano", messages=ASK, reasoning_effort="high")
    assert (caught.value.param, caught.value.code) == ("reasoning_effort", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="redraft-nano", messages=ASK, max_tokens=5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as stranger:
        stranger.models.list()
    assert [model.id for model in client.models.list()] == ["redraft-nano"]
    assert client.models.retrieve("redraft-nano").owned_by == "redraft"


def test_openai_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="redraft-nano", prompt=["def f", "12 + 3"], max_tokens=8, extra_body=FAST)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16


def test_openai_async_with_32_at_once(url: str, client: openai.OpenAI) -> None:
    asks: Any = [[{"role": "user", "content": f"{i} + {i}"}] for i in range(8)]
    alone = [
        client.chat.completions.create(model="redraft-nano", messages=ask, max_tokens=8, extra_body=FAST)
        for ask in asks[:2]
    ]

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=600, max_retries=0) as many:

            async def one(index: int) -> str:
                stream = await many.chat.completions.create(
                    model="redraft-nano", messages=asks[index % 8], max_tokens=8, extra_body=FAST, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(index) for index in range(32)))

    texts = asyncio.run(main())
    assert texts[:8] == texts[8:16] == texts[16:24] == texts[24:]
    assert texts[:2] == [answer.choices[0].message.content for answer in alone]


def test_openai_responses(client: openai.OpenAI) -> None:
    fields: Any = {"model": "redraft-nano", "max_output_tokens": 24, "extra_body": FAST}
    answer = client.responses.create(input="Sort 5, 2, 9.", instructions="Be brief.", **fields)
    assert answer.status in ("completed", "incomplete")
    assert answer.usage is not None
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    with client.responses.stream(input="Sort 5, 2, 9.", instructions="Be brief.", **fields) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert deltas == answer.output_text
    going_on = client.responses.create(input="Again.", previous_response_id=answer.id, **fields)
    assert going_on.previous_response_id == answer.id
    background = client.responses.create(input="Count to 100.", background=True, **fields)
    assert background.status in ("queued", "in_progress")
    assert client.responses.cancel(background.id).status in ("cancelled", "completed", "incomplete")
    tool: Any = {"type": "function", "strict": False, **WEATHER}
    called = client.responses.create(input="What is the weather in Rome?", tools=[tool], **fields)
    assert {item.type for item in called.output} <= {"message", "function_call"}


@pytest.mark.parametrize("count", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_streams_that_were_left_give_their_pages_back(url: str, count: int) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"messages": ASK, "stream": True, "redraft": {"events": True}}

    def figures() -> dict[str, float]:
        text = httpx.get(f"{url}/metrics", headers=headers, timeout=300).text
        return {name: float(value) for name, value in re.findall(r"^(redraft_\w+) (\S+)$", text, re.MULTILINE)}

    async def leave(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as stream:
            await anext(stream.aiter_bytes())

    async def main() -> None:
        async with httpx.AsyncClient(timeout=600) as client:
            for _ in range(0, count, 8):
                await asyncio.gather(*(leave(client) for _ in range(8)))

    asyncio.run(main())
    until(lambda: figures()["redraft_running"] + figures()["redraft_queue"] == 0, 300)
    found = figures()
    assert found["redraft_pages_free"] + found["redraft_pages_cached"] == found["redraft_pages"]


def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no price list from the network
    import litellm

    fields: Any = {
        "model": "openai/redraft-nano", "api_base": f"{url}/v1", "api_key": KEY, "messages": ASK, "max_tokens": 24,
        "timeout": 300, "num_retries": 0, "extra_body": FAST,
    }  # fmt: skip
    whole: Any = litellm.completion(**fields)
    text = whole.choices[0].message.content
    assert text
    pieces: Any = litellm.completion(**fields, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
    with pytest.raises(litellm.exceptions.BadRequestError, match="logit_bias"):
        litellm.completion(**fields, logit_bias={"x": 1})


TASK = """
task: apples
dataset_path: json
dataset_kwargs:
  data_files: {test: DATA}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], do_sample: false, max_gen_toks: 24}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata: {version: 1}
"""


def test_lm_eval_local_chat_completions(url: str, tmp_path: Path) -> None:
    """On a task of its own, from a file, with nothing from the network."""
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"What is {i} + 3?", "answer": str(i + 3)}) + "\n" for i in range(3))
    )
    (tmp_path / "apples.yaml").write_text(TASK.replace("DATA", str(data)))
    code = f"""
        import lm_eval
        from lm_eval.tasks import TaskManager
        arguments = "base_url={url}/v1/chat/completions,model=redraft-nano,num_concurrent=2,max_retries=1"
        found = lm_eval.simple_evaluate(
            model="local-chat-completions", model_args=arguments, tasks=["apples"], apply_chat_template=True,
            task_manager=TaskManager(include_path={str(tmp_path)!r}, include_defaults=False), log_samples=True,
        )
        print(len(found["samples"]["apples"]), found["results"]["apples"]["exact_match,none"])
    """
    environment = {
        **os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, score = done.stdout.split()[-2:]
    assert int(count) == 3
    assert 0 <= float(score) <= 1
