"""`/v1/responses`: OpenAI's newer shape of a conversation. Whole, streamed, or written in the background."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.responses import Response

from redraft.server.canvas import canvas
from redraft.server.errors import ApiError, invalid, of
from redraft.server.logs import log
from redraft.server.protocol.base import events_asked
from redraft.server.protocol.messages import require_open_choice
from redraft.server.protocol.responses import LOGPROBS, ResponseRequest, add_call, conversation
from redraft.server.routes.common import STREAM, caller_of, new_router, note, service_of
from redraft.server.routes.conversation import Chat, prepare
from redraft.server.service import Service
from redraft.server.shapes import new_id, response_usage, token_logprobs
from redraft.server.store import Store, Stored
from redraft.server.tools import Splitter
from redraft.server.wire import EventStream, JsonResponse, attended, event
from redraft.server.writing import Event, Writer
from redraft.types import CanvasEvent, Completion

router = new_router("OpenAI")
Show = Callable[[CanvasEvent, float], None]


@router.post("/v1/responses", responses={200: STREAM})
async def create(request: Request, body: ResponseRequest) -> Response:
    """Answers an input. With `background` it is there at once, to be retrieved when it is done."""
    service = service_of(request)
    note(request, body.user, body.safety_identifier, body.input)
    service.require_model(body.model)
    service.engine  # noqa: B018 - 503 comes before work on the prompt
    events = events_asked(body.redraft, bool(body.stream))
    _check(body)
    store: Store = request.app.state.store
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        before = store.find(body.previous_response_id, caller_of(request), "previous_response_id")
        if before.response["status"] not in ("completed", "incomplete"):
            status = before.response["status"]
            raise invalid(f"previous_response_id must name a response that is done, it is {status}")
        earlier = before.messages
    messages = conversation(body.input, earlier)
    told = [{"role": "system", "content": body.instructions}] if body.instructions is not None else []
    chat = await _prepared(service, body, told + messages)
    run = Run(service, chat, body, messages, store, caller_of(request))
    if body.stream:
        frames = run.frames(events)
        return EventStream(frames, fail=run.failed, seconds=service.settings.request_seconds + 60)
    if body.background:
        return JsonResponse(run.in_background())
    return JsonResponse(await attended(request, run.whole()))


@router.get("/v1/responses/{response_id}")
async def retrieve(request: Request, response_id: str) -> Response:
    """A response that is in memory, as it stands."""
    if request.query_params:
        name = next(iter(request.query_params))
        raise invalid(f"{name[:40]} is not supported: a response that is in memory is told as it stands", name[:40])
    store: Store = request.app.state.store
    return JsonResponse(store.find(response_id, caller_of(request), "response_id").response)


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """Ends a response that is written in the background; another ends when its client closes the connection."""
    store: Store = request.app.state.store
    stored = store.find(response_id, caller_of(request), "response_id")
    if stored.task is None:
        raise invalid("only responses made with background=true can be cancelled", "response_id")
    if not stored.over:
        stored.task.cancel()
        await asyncio.wait({stored.task})
    return JsonResponse(stored.response)


class Run:
    """One response, from its creation to its end. messages: the conversation without instructions, which aren't
    carried on."""

    def __init__(
        self,
        service: Service,
        chat: Chat,
        body: ResponseRequest,
        messages: list[dict[str, Any]],
        store: Store,
        caller: int | None,
    ) -> None:
        self._service, self._chat, self._body = service, chat, body
        self._store = store if body.store is not False else None
        self._stored = Stored(_blank(service, chat, body), messages, caller)
        self._writer = Writer()
        self._splitter = Splitter(chat.toolset)
        self._numbers = itertools.count()

    @property
    def _response(self) -> dict[str, Any]:
        return self._stored.response

    async def whole(self) -> dict[str, Any]:
        """The response, when it is done."""
        async for _ in self._events(steps=False):
            pass
        return self._response

    def in_background(self) -> dict[str, Any]:
        """The response as it begins; a task goes on with it. Raises ApiError 429 when too many wait."""
        self._service.require_room(1)
        self._stored.task = asyncio.create_task(self._alone())
        self._keep()
        return dict(self._response)

    async def frames(self, events: bool) -> AsyncGenerator[bytes, None]:
        """The server-sent events of the response."""
        async with aclosing(self._events(steps=events)) as made:
            async for one in made:
                if isinstance(one, tuple):
                    yield event(canvas(one[0], self._service.prompts.text_of, one[1]), "canvas")
                else:
                    yield self._frame(one)

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that can't go on."""
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return self._frame(told) + self._frame({"type": "response.failed", "response": self._response})

    def _frame(self, one: Event) -> bytes:
        return event(one | {"sequence_number": next(self._numbers)}, one["type"])

    async def _alone(self) -> None:
        try:
            await self.whole()
        except asyncio.CancelledError:
            self._end("cancelled")
        except Exception as error:  # noqa: BLE001 - whoever retrieves the response is told
            if of(error).status == 500:
                log.error("a background response has failed", exc_info=error)

    async def _events(self, *, steps: bool) -> AsyncGenerator[Event | tuple[CanvasEvent, float], None]:
        """What happens, in order; the response is kept up to date, and in the store."""
        begun = False
        try:
            async with aclosing(self._service.events(self._chat.prompt, self._chat.params, steps=steps)) as stream:
                async for step, seconds in stream:
                    if not begun:
                        begun = True
                        self._response["status"] = "in_progress"
                        self._keep()
                        yield {"type": "response.created", "response": dict(self._response)}
                        yield {"type": "response.in_progress", "response": dict(self._response)}
                    if steps:
                        yield step, seconds
                    for one in self._written(self._splitter.push(step.text_delta)):
                        yield one
                    if step.completion is not None:
                        for one in self._last(step.completion):
                            yield one
        except Exception as error:
            told = of(error)
            self._response["error"] = {"code": "server_error", "message": told.message}
            self._end("failed")
            raise
        finally:
            if not self._stored.over and self._stored.task is None and self._store is not None:
                self._store.drop(self._response["id"])  # its client has gone

    def _written(self, parts: Iterable[Any]) -> Iterable[Event]:
        for part in parts:
            yield from self._writer.write(part)

    def _last(self, completion: Completion) -> Iterable[Event]:
        choice = completion.choices[0]
        cut = choice.finish_reason == "length"
        yield from self._written(self._splitter.finish())
        top = self._chat.params.logprobs
        found = [] if top is None else token_logprobs(choice, self._service.prompts, top)
        yield from self._writer.finish(found, whole=not cut)
        self._response["usage"] = response_usage(completion)
        if cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._end("incomplete" if cut else "completed")
        yield {"type": f"response.{self._response['status']}", "response": self._response}

    def _end(self, status: str) -> None:
        self._response["output"] = self._writer.items
        self._response["status"] = status
        if status == "completed":
            self._response["completed_at"] = int(time.time())
        for item in self._writer.items:
            if item["type"] == "message":
                text = "".join(part["text"] for part in item["content"])
                self._stored.messages.append({"role": "assistant", "content": text})
            else:
                add_call(self._stored.messages, item["call_id"], item["name"], json.loads(item["arguments"] or "{}"))
        self._keep()

    def _keep(self) -> None:
        if self._store is not None:
            self._store.keep(self._stored)


def _check(body: ResponseRequest) -> None:
    """What the fields together can't mean."""
    require_open_choice(body.tool_choice)
    if body.background and body.stream:
        raise invalid("background and stream together are not supported; give one of them", "background")
    if body.background and body.store is False:
        raise invalid("background needs store, since the response is retrieved later", "background")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream set to true", "stream_options")
    if body.top_logprobs is not None and not body.include:
        raise invalid(f'top_logprobs needs include=["{LOGPROBS}"]', "top_logprobs")
    if body.include and body.tools:
        raise invalid("log-probabilities together with tools are not supported", "include")


async def _prepared(service: Service, body: ResponseRequest, messages: list[dict[str, Any]]) -> Chat:
    fields = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_tokens": body.max_output_tokens,
        "logprobs": (body.top_logprobs or 0) if body.include else None,
    }
    tools = [
        {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}
        for tool in body.tools or ()
    ]
    names = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs", "messages": "input"}
    choice = body.tool_choice if isinstance(body.tool_choice, str) else None
    return await prepare(service, messages, fields, body.redraft, tools=tools, tool_choice=choice, names=names)


def _blank(service: Service, chat: Chat, body: ResponseRequest) -> dict[str, Any]:
    """The response before anything is written."""
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": chat.params.max_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": service.name,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": chat.params.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [tool.model_dump() | {"strict": False} for tool in body.tools or ()],
        "top_logprobs": chat.params.logprobs or 0,
        "top_p": chat.params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }
