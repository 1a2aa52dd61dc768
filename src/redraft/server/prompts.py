"""Prompts: conversations and texts to token ids, beside the event loop.

Rendering a template is Python that a stranger wrote; `redraft.text.sandbox` bounds its steps, memory and time. Both it
and encoding run in a few threads, so that a large prompt or a slow template holds up its own request and no stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from redraft.server.errors import ApiError
from redraft.text.detokenizer import token_bytes
from redraft.text.tokenizer import Tokenizer

THREADS = 2
SECONDS = 30.0  # waiting for a thread included

Result = TypeVar("Result")


class Prompts:
    """A tokenizer, used from coroutines."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="redraft prompts")
        self._texts: dict[int, str] = {}

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation; control strings in contents stay text. Raises as `Tokenizer.render_chat`, and ApiError
        504 when it takes too long."""
        return await self._run(lambda: self.tokenizer.render_chat(messages, tools))

    async def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        return await self._run(lambda: self.tokenizer.encode(text))

    async def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control strings left out."""
        return await self._run(lambda: self.tokenizer.decode(ids))

    def text_of(self, token: int) -> str:
        """One token as it shows on a canvas."""
        if token not in self._texts:
            self._texts[token] = self.tokenizer.decode([token], skip_special=False)
        return self._texts[token]

    def bytes_of(self, token: int) -> list[int]:
        """One token as UTF-8, perhaps not whole characters."""
        return list(token_bytes(self.tokenizer, token))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SECONDS):
                return await loop.run_in_executor(self._threads, work)
        except TimeoutError:
            raise ApiError(504, f"the prompt took more than {SECONDS:g} seconds to prepare", code="timeout") from None
