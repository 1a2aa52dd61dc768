"""The server as a process: uvicorn, heads of requests that must come in time, and an end in order."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from redraft.errors import InvalidInput, RedraftError
from redraft.server.app import make_app
from redraft.server.logs import log
from redraft.server.service import Service
from redraft.server.settings import ServerSettings

BACKLOG = 2048  # connections that the system holds until they are accepted
KEEP_ALIVE_SECONDS = 30
LAST_SECONDS = 15  # after a drain, for the last words to those whose answers were cut


def protocol(header_seconds: float, body_seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol on h11, which closes a connection whose request doesn't come (slow loris): the head within
    `header_seconds` of its first byte or of the connection, the rest of a body that nobody reads within `body_seconds`.
    (A body that is read has its time in `redraft.server.guard`.)"""

    class Punctual(H11Protocol):
        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._close_after(header_seconds)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._keep()
            elif self._closing is None:
                self._close_after(header_seconds)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY:
                self._close_after(body_seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            self._keep()
            super().connection_lost(exc)

        def _close_after(self, seconds: float) -> None:
            self._keep()
            self._closing = self.loop.call_later(seconds, self.transport.close)

        def _keep(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return Punctual


class Server(uvicorn.Server):
    """Stops in order: nothing new is taken, running answers have `drain_seconds`, then they are cut and their clients
    told. Asked once more, it cuts them at once. failure: why it ended, if it wasn't asked to."""

    failure: Exception | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, service: Service) -> None:
        self._service = service
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                make_app(service, self._failed),
                host=settings.host,
                port=settings.port,
                http=protocol(settings.header_seconds, settings.body_seconds),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(settings.drain_seconds) + LAST_SECONDS,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises InvalidInput when the address can't be had."""
        settings = self._service.settings
        super().run(sockets or [listen(settings.host, settings.port)])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        settings = self._service.settings
        port = self.servers[0].sockets[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        log.info("listening on http://%s:%d", host, port, extra={"settings": settings.public()})
        if settings.open_to_others:
            log.warning("anybody who reaches %s may use this server; api_keys would keep others out", settings.host)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's own, asked for the second time, leaves running answers where they are, with tracebacks."""
        if not self.should_exit:
            self.should_exit = True
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.hurry)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = self._service.settings.drain_seconds
        log.info("stopping; running answers have %g seconds, a second signal or Ctrl-C cuts them", seconds)
        draining = asyncio.create_task(self._service.drain())
        await super().shutdown(sockets)
        draining.cancel()
        log.info("stopped")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal once more in the end; a server that stopped as it was asked to ends well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _failed(self, error: Exception) -> None:
        self.failure = error
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # the address follows once more
        raise InvalidInput(f"can't listen at host {host!r}, port {port}: {reason}; choose another") from None


def serve(settings: ServerSettings) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises RedraftError when the model can't be loaded, or the address be had."""
    server = Server(Service.of(settings))
    server.run()
    if server.failure is not None:
        raise server.failure if isinstance(server.failure, RedraftError) else RuntimeError(str(server.failure))
