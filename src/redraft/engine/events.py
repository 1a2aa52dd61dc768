"""Canvas events: what the engine tells of one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from redraft.decoding.canvas import Canvas, Change
from redraft.types import CanvasEvent, Completion


def canvas_event(
    request: int,
    choice: int,
    canvas: Canvas,
    change: Change,
    *,
    frozen: bool = False,
    text: str = "",
    completion: Completion | None = None,
) -> CanvasEvent:
    """The event of a step that made `change` and led to `canvas`."""
    return CanvasEvent(
        request=request,
        choice=choice,
        step=canvas.step,
        block=canvas.block,
        tokens=tuple(canvas.tokens.tolist()),
        confidence=tuple(canvas.confidence.tolist()),
        masked=tuple(np.flatnonzero(canvas.masked).tolist()),
        drafted=change.drafted,
        edited=change.edited,
        deleted=change.deleted,
        inserted=change.inserted,
        prompt=tuple(np.flatnonzero(canvas.prompt).tolist()),
        frozen=frozen,
        text_delta=text,
        completion=completion,
    )


def pass_events(
    request: int, choice: int, window: Sequence[Canvas], joined: Canvas, change: Change
) -> list[CanvasEvent]:
    """The events of a step over all blocks of a window at once: one for each block that it changed."""
    events, start = [], 0
    for canvas in joined.split(window):
        own = change.part(start, start + len(canvas.tokens))
        start += len(canvas.tokens)
        if own:
            events.append(canvas_event(request, choice, canvas, own))
    return events
