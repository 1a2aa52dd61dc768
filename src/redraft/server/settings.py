"""What the server is started with."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from redraft.engine.messages import EngineSpec
from redraft.engine.request import EngineSettings
from redraft.errors import InvalidInput

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """model, device, dtype, block_length, max_running, cache_tokens, memory_fraction, prefix_cache: as in
    `redraft.LLM`.
    name: what requests call the model; None takes the folder's.
    modes: a file of `redraft tune`; None takes `modes.json` of the checkpoint folder where there is one.
    api_keys: who sends none of them is turned away; none: everybody may ask.
    cors_origins: web pages of these origins may ask.
    queue_limit: answers that may wait beyond those that are written. max_requests: requests in progress.
    max_request_tokens: tokens that one request may ask for, all its answers together.
    max_body_bytes: of a request. header_seconds, body_seconds: in which its head and its body must have come.
    request_seconds: for an answer, its waiting included. drain_seconds: for running answers after SIGTERM.
    stored_responses: of `/v1/responses` that are kept in memory.
    log_prompts: whether the log shows what was asked.
    """

    model: str | None = None
    name: str | None = None
    modes: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    block_length: int | None = None
    max_running: int = 16
    cache_tokens: int | None = None
    memory_fraction: float | None = None
    prefix_cache: bool = True
    queue_limit: int = 256
    max_requests: int = 1024
    max_request_tokens: int = 65536
    max_body_bytes: int = 4 * 2**20
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    stored_responses: int = 256
    log_prompts: bool = False

    def __post_init__(self) -> None:
        low = {"port": 0, "queue_limit": 0, "stored_responses": 0}
        for name in ("port", "queue_limit", "max_requests", "max_request_tokens", "max_body_bytes", "stored_responses"):
            value, least = getattr(self, name), low.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name} must be an integer of at least {least}, got {value!r}")
        if self.port > 65535:
            raise InvalidInput(f"port must be at most 65535, got {self.port}")
        for name in ("header_seconds", "body_seconds", "request_seconds", "drain_seconds"):
            value = getattr(self, name)
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not good or value < 0 or (value == 0 and name != "drain_seconds"):
                raise InvalidInput(f"{name} must be a number of seconds above 0, got {value!r}")
        for key in self.api_keys:
            if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
                raise InvalidInput("api_keys must be at least 8 printable ASCII characters each, without spaces")
        for origin in self.cors_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise InvalidInput(f"cors_origins must be origins such as https://example.org, or *, got {origin!r}")
        self.spec()

    @property
    def open_to_others(self) -> bool:
        """Whether other machines may reach it and nobody needs a key."""
        return self.host not in LOOPBACK and not self.api_keys

    def spec(self) -> EngineSpec:
        """The engine's part."""
        settings = EngineSettings(
            max_running=self.max_running,
            cache_tokens=self.cache_tokens,
            memory_fraction=self.memory_fraction,
            prefix_cache=self.prefix_cache,
        )
        return EngineSpec(
            model=self.model, device=self.device, dtype=self.dtype, block_length=self.block_length, settings=settings
        )

    def served_name(self, folder: Path) -> str:
        return self.name or folder.resolve().name

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def public(self) -> dict[str, Any]:
        """For the log: everything but the keys, of which only the number is told."""
        shown = {name: getattr(self, name) for name in self.names()}
        return shown | {"api_keys": len(self.api_keys)}
