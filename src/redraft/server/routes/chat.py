"""`/v1/chat/completions`: a conversation in, an answer out, whole or as it is written."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.responses import Response

from redraft.server.canvas import canvas
from redraft.server.errors import ApiError, invalid, unsupported
from redraft.server.protocol.base import bias, events_asked
from redraft.server.protocol.chat import NO_CONSTRAINTS, ChatCompletion, ChatRequest
from redraft.server.protocol.messages import require_open_choice, template_messages
from redraft.server.routes.common import STREAM, new_router, note, service_of
from redraft.server.routes.conversation import Chat, prepare
from redraft.server.service import Service
from redraft.server.shapes import new_id, token_logprobs, usage
from redraft.server.tools import Call, Splitter
from redraft.server.wire import DONE, EventStream, JsonResponse, attended, dumps, event
from redraft.types import Choice, Completion

router = new_router("OpenAI")


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses={200: STREAM})
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answers a conversation. With `stream`, server-sent events; with `redraft.events` too, the steps of the canvas."""
    service = service_of(request)
    note(request, body.user, body.safety_identifier, body.messages)
    events = events_asked(body.redraft, bool(body.stream))
    chat = await prepared(service, body)
    if body.stream:
        with_usage = events or bool(body.stream_options and body.stream_options.include_usage)
        frames = chat_frames(service, chat, events, with_usage)
        return EventStream(frames, fail=failed, seconds=service.settings.request_seconds + 60)
    completion = await attended(request, service.answer(chat.prompt, chat.params))
    choices = [whole_choice(service, chat, index, choice) for index, choice in enumerate(completion.choices)]
    head = {"id": new_id("chatcmpl-"), "object": "chat.completion", "created": int(time.time())}
    return JsonResponse(head | {"model": service.name, "choices": choices, "usage": usage([completion])})


async def prepared(service: Service, body: ChatRequest) -> Chat:
    """The request in the engine's terms. Raises ApiError for what the fields can't mean, alone and together."""
    service.require_model(body.model)
    service.engine  # noqa: B018 - 503 comes before work on the prompt
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format", NO_CONSTRAINTS)
    require_open_choice(body.tool_choice)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs set to true", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream set to true", "stream_options")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens say the same thing; give one", "max_completion_tokens")
    named = "max_completion_tokens" if body.max_tokens is None else "max_tokens"
    fields = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "max_tokens": body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        "stop": body.stop,
        "n": body.n,
        "logit_bias": bias(body.logit_bias),
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    names = {"max_tokens": named, "logprobs": "top_logprobs", "messages": "messages"}
    choice = body.tool_choice if isinstance(body.tool_choice, str) else None
    messages = template_messages(body.messages)
    return await prepare(service, messages, fields, body.redraft, tools=tools, tool_choice=choice, names=names)


def whole_choice(service: Service, chat: Chat, index: int, choice: Choice) -> dict[str, Any]:
    """A choice of a response that isn't streamed."""
    splitter = Splitter(chat.toolset)
    parts = [*splitter.push(choice.text), *splitter.finish()]
    content = "".join(part for part in parts if isinstance(part, str))
    calls = [tool_call(part) for part in parts if isinstance(part, Call)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
    }
    return {
        "index": index,
        "message": message | ({"tool_calls": calls} if calls else {}),
        "logprobs": logprobs(service, chat, choice),
        "finish_reason": finish_reason(choice, splitter),
    }


async def chat_frames(service: Service, chat: Chat, events: bool, with_usage: bool) -> AsyncGenerator[bytes, None]:
    """The server-sent events of a streamed response, from the role chunks to [DONE]."""
    head = {"id": new_id("chatcmpl-"), "object": "chat.completion.chunk", "created": int(time.time())}
    head["model"] = service.name
    splitters = [Splitter(chat.toolset) for _ in range(chat.params.n)]

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None, found: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": found, "finish_reason": finish}
        return event(head | {"choices": [choice]} | ({"usage": None} if with_usage else {}))

    def chunks(index: int, parts: Iterable[str | Call]) -> Iterable[bytes]:
        number = splitters[index].found
        for part in parts:
            if isinstance(part, str):
                yield chunk(index, {"content": part})
            else:
                yield chunk(index, {"tool_calls": [{"index": number} | tool_call(part)]})
                number += 1

    begun, completion = False, None
    async with aclosing(service.events(chat.prompt, chat.params, steps=events)) as stream:
        async for step, seconds in stream:
            if not begun:
                begun = True
                for index in range(chat.params.n):
                    yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
            if events:
                yield event(canvas(step, service.prompts.text_of, seconds), "canvas")
            for frame in chunks(step.choice, splitters[step.choice].push(step.text_delta)):
                yield frame
            completion = step.completion or completion
    if completion is not None:
        for frame in _last(service, chat, completion, splitters, chunk, chunks):
            yield frame
        if with_usage:
            yield event(head | {"choices": [], "usage": usage([completion])})
    yield DONE


def _last(
    service: Service, chat: Chat, completion: Completion, splitters: list[Splitter], chunk: Any, chunks: Any
) -> Iterable[bytes]:
    """What was held back, and the finish chunk with the log-probabilities, of each choice."""
    for index, choice in enumerate(completion.choices):
        yield from chunks(index, splitters[index].finish())
        yield chunk(index, {}, finish_reason(choice, splitters[index]), logprobs(service, chat, choice))


def finish_reason(choice: Choice, splitter: Splitter) -> str:
    return "tool_calls" if splitter.found and choice.finish_reason == "stop" else choice.finish_reason


def logprobs(service: Service, chat: Chat, choice: Choice) -> dict[str, Any] | None:
    if chat.params.logprobs is None:
        return None
    return {"content": token_logprobs(choice, service.prompts, chat.params.logprobs), "refusal": None}


def tool_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def failed(error: ApiError) -> bytes:
    """The end of a stream that has begun and can't go on."""
    return b"data: " + dumps(error.body()) + b"\n\n" + DONE
