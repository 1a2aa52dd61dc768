"""JSON and server-sent events onto the wire, and what happens when the client goes."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from redraft.server.errors import ApiError, of
from redraft.server.logs import log

HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": still working\n\n"
DONE = b"data: [DONE]\n\n"
Result = TypeVar("Result")


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which can't be encoded, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    return (b"" if name is None else f"event: {name}\n".encode()) + b"data: " + dumps(value) + b"\n\n"


class StrictRequest(Request):
    """A request whose body is JSON as the standard has it: without NaN, and without numbers that no float holds."""

    async def json(self) -> Any:
        body = await self.body()
        return json.loads(body, parse_constant=_no_number, parse_float=_finite)


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly


def _no_number(name: str) -> float:
    raise json.JSONDecodeError(f"{name} is no number of JSON", name, 0)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise json.JSONDecodeError(f"{text[:40]} is too large a number", text[:40], 0)
    return value


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


def error_response(error: Exception) -> JsonResponse:
    """The response to an error; a bug is written to the log."""
    told = of(error)
    if told.status == 500:
        log.error("a request has failed", exc_info=error)
    return JsonResponse(told.body(), told.status, headers=dict(told.headers or {}))


class ClientGone(Exception):
    """Nobody is there who would read the answer."""


async def attended(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled, and ClientGone raised, when the client closes its connection."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _end(task)
        await _end(gone)


class EventStream(Response):
    """Server-sent events as they are made. What goes wrong before the first is an HTTP error; after it, the last event.

    frames: whole events; closed in every case. fail: the frames of an error. seconds: until the connection is given up,
    however slowly its client reads.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes, None], *, fail: Callable[[ApiError], bytes], seconds: float
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames, self._fail, self._seconds = frames, fail, seconds
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(scope, receive, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({pump, gone}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            await _end(pump)
            await _end(gone)

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(_with_heartbeats(self._frames)) as frames:
            try:
                async for frame in frames:
                    await self._write(send, frame)
            except Exception as error:  # noqa: BLE001 - a stream that has begun can only tell its client
                told = of(error)
                if not self._begun:
                    await error_response(error)(scope, receive, send)
                    return
                if told.status == 500:
                    log.error("a stream has failed", exc_info=error)
                await self._write(send, self._fail(told))
            await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, frame: bytes) -> None:
        if not self._begun:
            self._begun = True
            start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        await send({"type": "http.response.body", "body": frame, "more_body": True})


async def _with_heartbeats(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The frames, and a comment when none came for a while, so that what lies between takes nobody for dead."""
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(frames))
            await asyncio.wait({following}, timeout=HEARTBEAT_SECONDS)
            if not following.done():
                yield HEARTBEAT
                continue
            done, following = following, None
            try:
                frame = done.result()
            except StopAsyncIteration:
                return
            yield frame
    finally:
        if following is not None:
            await _end(following)
        await frames.aclose()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and waits until it has cleaned up; its outcome was read, or isn't wanted."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
