"""What the routes share."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from redraft.server.protocol.base import ErrorBody
from redraft.server.service import Service
from redraft.server.wire import StrictRoute

EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
STREAM: dict[str, Any] = {
    "content": {"text/event-stream": {"schema": EVENT}},
    "description": "The answer: JSON, or server-sent events with `stream`.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "What was asked can't be; the message names the field, its value and what would be right.",
        401: "No valid key.",
        404: "No such model or response.",
        408: "The request came too slowly.",
        413: "The body is too large.",
        429: "Too much at once.",
        503: "Loading, stopping, or the engine is gone.",
        504: "It took too long.",
    }.items()
}


def service_of(request: Request) -> Service:
    return request.app.state.service


def note(request: Request, user: str | None, safety_identifier: str | None, prompt: Any) -> None:
    """Adds to the line that the log will have of this request."""
    noted = request.scope["redraft"].noted
    for name, value in (("user", user), ("safety_identifier", safety_identifier)):
        if value is not None:
            noted[name] = value
    if service_of(request).settings.log_prompts:
        parts = prompt if isinstance(prompt, list) else [prompt]
        noted["prompt"] = [part.model_dump() if isinstance(part, BaseModel) else part for part in parts]


def caller_of(request: Request) -> int | None:
    """The number of the key that the request came with; None where none is needed."""
    return request.scope["redraft"].caller


def new_router(tag: str) -> APIRouter:
    """Every route takes strict JSON, and says which errors it may answer with."""
    return APIRouter(route_class=StrictRoute, responses=ERRORS, tags=[tag])
