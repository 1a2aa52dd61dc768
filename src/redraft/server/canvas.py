"""The canvas channel: every step of an answer as a server-sent event named `canvas`, for those who asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redraft.types import CanvasEvent


def canvas(
    event: CanvasEvent, text_of: Callable[[int], str], seconds: float, choice: int | None = None
) -> dict[str, Any]:
    """The event as JSON values. text_of: the text of one token id. seconds: since the request was made. choice: its
    index in the response, where that is another than in its prompt's answer."""
    texts = [text_of(token) for token in event.tokens]
    return {
        "object": "redraft.canvas",
        "choice": event.choice if choice is None else choice,
        "step": event.step,
        "block": event.block,
        "ids": list(event.tokens),
        "texts": texts,
        "confidence": [round(value, 4) for value in event.confidence],
        "masked": list(event.masked),
        "drafted": list(event.drafted),
        "edited": {str(place): [text_of(old), texts[place]] for place, old in sorted(event.edited.items())},
        "deleted": list(event.deleted),
        "inserted": list(event.inserted),
        "prompt": list(event.prompt),
        "frozen": event.frozen,
        "text": event.text_delta,
        "time": round(seconds, 4),
    }
