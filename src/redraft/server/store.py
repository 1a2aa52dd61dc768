"""Responses that are kept in memory, the newest of them, for those who made them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from redraft.server.errors import ApiError
from redraft.server.wire import dumps

MAX_BYTES = 64 * 2**20
ENDED = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True, eq=False)
class Stored:
    """response: as it is told. messages: the conversation with its answer, for who continues it. caller: the number of
    the key it was made with. task: writes it in the background."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    caller: int | None
    task: asyncio.Task[None] | None = None
    size: int = field(default=0)

    @property
    def over(self) -> bool:
        return self.response["status"] in ENDED


class Store:
    """At most `limit` responses and `MAX_BYTES` of them; who comes beyond pushes out the oldest that has ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def keep(self, stored: Stored) -> None:
        """Puts it in, or takes account of what it has become."""
        name = stored.response["id"]
        self._forget(name)
        stored.size = len(dumps([stored.response, stored.messages]))
        self._kept[name] = stored
        self._bytes += stored.size
        for other in list(self._kept):
            if len(self._kept) <= self._limit and self._bytes <= MAX_BYTES:
                return
            if self._kept[other].over:
                self._forget(other)

    def drop(self, name: str) -> None:
        self._forget(name)

    def find(self, name: str, caller: int | None, param: str) -> Stored:
        """Raises ApiError 404; other callers' responses aren't there either."""
        stored = self._kept.get(name)
        if stored is None or stored.caller != caller:
            message = f"no response {name[:80]!r} is in memory; those made with store=false, and old ones, aren't kept"
            raise ApiError(404, message, param=param, code="response_not_found")
        return stored

    async def close(self) -> None:
        """Ends what is written in the background."""
        tasks = [stored.task for stored in self._kept.values() if stored.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, name: str) -> None:
        stored = self._kept.pop(name, None)
        if stored is not None:
            self._bytes -= stored.size
