"""What every request passes before a route: an id, a key, limits of size, time and number, and a line in the log."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft.server.errors import ApiError
from redraft.server.logs import log
from redraft.server.metrics import Metrics
from redraft.server.settings import ServerSettings
from redraft.server.wire import ClientGone, error_response

ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
CLIENT_GONE = 499  # in the log alone
QUIET = ("/health", "/ready", "/metrics")  # asked all the time, by machines
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


@dataclass(slots=True)
class Passing:
    """One request on its way. caller: the number of its key. noted: what routes add to its line in the log."""

    id: str
    caller: int | None = None
    noted: dict[str, Any] = field(default_factory=dict)


class Guard:
    """ASGI middleware around the whole application. open_to_all: which paths need no key."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, open_to_all: Collection[str]) -> None:
        self._app, self._settings, self._metrics, self._open = app, settings, metrics, open_to_all
        self._keys = [_digest(key.encode()) for key in settings.api_keys]
        self._passing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        passing = Passing(given.decode() if ID.fullmatch(given) else f"req-{secrets.token_hex(12)}")
        scope["redraft"] = passing
        began, status = time.monotonic(), CLIENT_GONE

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", passing.id.encode()), *HEADERS]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        self._passing += 1
        self._metrics.in_progress.inc()
        try:
            self._let_in(scope["path"], headers, passing)
            await self._app(scope, self._limited(headers, receive), answer)
        except ClientGone:
            pass
        except Exception as error:
            if status != CLIENT_GONE:  # the response has begun, and breaks off
                raise
            await error_response(error)(scope, receive, answer)
        finally:
            self._passing -= 1
            self._metrics.in_progress.dec()
            self._tell(scope, passing, status, time.monotonic() - began)

    def _let_in(self, path: str, headers: dict[bytes, bytes], passing: Passing) -> None:
        if path in self._open:
            return
        if self._keys:
            passing.caller = self._caller(headers.get(b"authorization", b""))
            if passing.caller is None:
                raise ApiError(
                    401, 'a valid key is needed: send it as "Authorization: Bearer KEY"', code="invalid_api_key"
                )
        if self._passing > self._settings.max_requests:
            raise ApiError(429, f"{self._settings.max_requests} requests are in progress", code="too_many_requests")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._settings.max_body_bytes:
            raise self._too_large()

    def _caller(self, authorization: bytes) -> int | None:
        """The number of the key. It takes as long for any: digests of one length, compared in constant time, all."""
        scheme, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        equal = [hmac.compare_digest(digest, own) for own in self._keys]
        return equal.index(True) if any(equal) and scheme.lower() == b"bearer" else None

    def _limited(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """`receive`, which raises ApiError for a body that gets too large, or isn't there in time."""
        size, whole = 0, b"content-length" not in headers and b"transfer-encoding" not in headers
        deadline = asyncio.get_running_loop().time() + self._settings.body_seconds

        async def limited() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                seconds = self._settings.body_seconds
                raise ApiError(408, f"the body didn't come within {seconds:g} seconds", code="timeout") from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self._settings.max_body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body may have {self._settings.max_body_bytes} bytes", code="body_too_large")

    def _tell(self, scope: Scope, passing: Passing, status: int, seconds: float) -> None:
        route = scope.get("route")
        self._metrics.requests.labels(getattr(route, "path", "none"), str(status)).inc()
        entry = {
            "request_id": passing.id,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            "client": (scope.get("client") or ("",))[0],
        }
        if passing.caller is not None:
            entry["key"] = passing.caller
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
        log.log(level, "request", extra=entry | passing.noted)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
