"""`/v1/completions`: texts or token ids in, what follows them out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from redraft.server.canvas import canvas
from redraft.server.errors import invalid
from redraft.server.protocol.base import bias, events_asked, sampling
from redraft.server.protocol.completions import CompletionRequest, TextCompletion
from redraft.server.routes.chat import failed
from redraft.server.routes.common import STREAM, new_router, note, service_of
from redraft.server.service import Service
from redraft.server.shapes import new_id, shown_logprobs, usage
from redraft.server.wire import DONE, EventStream, JsonResponse, attended, event
from redraft.types import CanvasEvent, Choice, Completion, SamplingParams

router = new_router("OpenAI")
DEFAULT_TOKENS = 16  # OpenAI's


@dataclass(frozen=True, slots=True)
class Continuation:
    """A request, ready for the engine. echoes: what each answer begins with."""

    prompts: list[list[int]]
    echoes: list[str]
    params: SamplingParams
    events: bool
    usage: bool


@router.post("/v1/completions", response_model=TextCompletion, responses={200: STREAM})
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continues a text, or several. The choices of prompt i are those from i * n on."""
    service = service_of(request)
    note(request, body.user, None, body.prompt)
    asked = await prepare(service, body)
    if body.stream:
        frames = completion_frames(service, asked)
        return EventStream(frames, fail=failed, seconds=service.settings.request_seconds + 60)
    done = await attended(request, answers(service, asked))
    choices = [
        shape(service, asked, index, asked.echoes[index // asked.params.n] + choice.text, choice)
        for index, choice in enumerate(choice for completion in done for choice in completion.choices)
    ]
    head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": service.name}
    return JsonResponse(head | {"choices": choices, "usage": usage(done)})


async def prepare(service: Service, body: CompletionRequest) -> Continuation:
    """Everything that can be refused before the engine is asked. Raises ApiError."""
    service.require_model(body.model)
    service.engine  # noqa: B018 - 503 comes before work on the prompt
    if body.echo and body.logprobs is not None:
        raise invalid("echo with logprobs is not supported: prompts have no log-probabilities here", "logprobs")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream set to true", "stream_options")
    events = events_asked(body.redraft, bool(body.stream))
    fields = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "max_tokens": body.max_tokens or service.defaults.get("max_tokens", DEFAULT_TOKENS),
        "stop": body.stop,
        "n": body.n,
        "logit_bias": bias(body.logit_bias),
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logprobs": body.logprobs,
    }
    params = sampling(service.defaults, service.modes, fields, body.redraft, {})
    several = body.several
    prompts = [await service.prompts.encode(one) if isinstance(one, str) else one for one in several]
    params = service.fit(prompts, params, open_end=False, param="prompt")
    echoes = [await _echo(service, one) if body.echo else "" for one in several]
    wants_usage = events or bool(body.stream_options and body.stream_options.include_usage)
    return Continuation(prompts, echoes, params, events, wants_usage)


async def answers(service: Service, asked: Continuation) -> list[Completion]:
    """One completion a prompt; if one of them fails, the others end too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(service.answer(prompt, asked.params)) for prompt in asked.prompts]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def completion_frames(service: Service, asked: Continuation) -> AsyncGenerator[bytes, None]:
    """The server-sent events of a streamed response; prompts are answered together and their chunks come as made."""
    head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": service.name}
    n = asked.params.n
    echoed: set[int] = set()
    done: list[Completion | None] = [None] * len(asked.prompts)

    def chunk(index: int, text: str, choice: Choice | None = None) -> bytes:
        entry = shape(service, asked, index, text, choice)
        return event(head | {"choices": [entry]} | ({"usage": None} if asked.usage else {}))

    async with aclosing(_together(service, asked)) as stream:
        async for number, step, seconds in stream:
            index = number * n + step.choice
            if asked.events:
                yield event(canvas(step, service.prompts.text_of, seconds, index), "canvas")
            for echo in range(number * n, number * n + n):
                if asked.echoes[number] and echo not in echoed:
                    echoed.add(echo)
                    yield chunk(echo, asked.echoes[number])
            if step.text_delta:
                yield chunk(index, step.text_delta)
            if step.completion is not None:
                done[number] = step.completion
                for choice, answer in enumerate(step.completion.choices):
                    yield chunk(number * n + choice, "", answer)
    if asked.usage:
        yield event(head | {"choices": [], "usage": usage([one for one in done if one is not None])})
    yield DONE


async def _together(service: Service, asked: Continuation) -> AsyncGenerator[tuple[int, CanvasEvent, float], None]:
    """The events of all prompts, each with the prompt's number. An error of one is raised and ends the others."""
    queue: asyncio.Queue[tuple[int, CanvasEvent, float] | Exception | None] = asyncio.Queue(maxsize=1)

    async def read(number: int, prompt: Sequence[int]) -> None:
        try:
            async with aclosing(service.events(prompt, asked.params, steps=asked.events)) as events:
                async for step, seconds in events:
                    await queue.put((number, step, seconds))
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 - handed on to who reads the queue
            await queue.put(error)

    tasks = [asyncio.create_task(read(number, prompt)) for number, prompt in enumerate(asked.prompts)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def shape(service: Service, asked: Continuation, index: int, text: str, choice: Choice | None) -> dict[str, Any]:
    """One choice, whole or as a piece; only the last piece says how it ended and has log-probabilities."""
    ended = None if choice is None else choice.finish_reason
    found = None if choice is None or asked.params.logprobs is None else _logprobs(service, asked, choice)
    return {"index": index, "text": text, "logprobs": found, "finish_reason": ended}


def _logprobs(service: Service, asked: Continuation, choice: Choice) -> dict[str, Any]:
    """In the old shape: four lists of one length."""
    entries = shown_logprobs(choice, service.prompts)
    tokens = [service.prompts.text_of(entry.token) for entry in entries]
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {service.prompts.text_of(token): value for token, value in reversed(entry.top)} for entry in entries
        ],
        "text_offset": offsets,
    }


async def _echo(service: Service, given: str | list[int]) -> str:
    return given if isinstance(given, str) else await service.prompts.decode(given)
