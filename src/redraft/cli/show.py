"""Showing frames as they come: a live picture in a terminal, the frozen text anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from redraft.cli.frames import Frame
from redraft.cli.view import FOOTER_STYLE, ViewState, canvas, render, transcript

LONGEST_PAUSE = 2.0


def show(frames: Iterator[Frame], state: ViewState, console: Console) -> bool:
    """Feeds `state` with all frames while they are seen, and returns whether the end was reached.

    Ctrl-C ends it early: the terminal is put back, and what was there stays on it.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        return _show_live(frames, state, console)
    return _show_plain(frames, state, console.file)


def drain(frames: Iterator[Frame], state: ViewState) -> bool:
    """Feeds `state` with all frames unseen, and returns whether the end was reached before a Ctrl-C."""
    try:
        for frame in frames:
            state.feed(frame)
    except KeyboardInterrupt:
        return False
    return True


def paced(frames: Iterable[Frame], speed: float, shortest: float = 0.0) -> Iterator[Frame]:
    """The frames with the pauses that lay between them, divided by `speed`, and at least `shortest` seconds long."""
    before = None
    for frame in frames:
        if before is not None:
            time.sleep(min(max((frame.seconds - before) / speed, shortest), LONGEST_PAUSE))
        before = frame.seconds
        yield frame


def _show_live(frames: Iterator[Frame], state: ViewState, console: Console) -> bool:
    reached_end = True
    with Live(console=console, auto_refresh=False, transient=True) as live:
        try:
            for frame in frames:
                state.feed(frame)
                live.update(render(state), refresh=True)
        except KeyboardInterrupt:
            reached_end = False
    console.print(transcript(state) if reached_end else canvas(state), soft_wrap=True)
    console.print(Text(state.summary(), FOOTER_STYLE))
    return reached_end


def _show_plain(frames: Iterator[Frame], state: ViewState, out: IO[str]) -> bool:
    written = ""
    try:
        for frame in frames:
            state.feed(frame)
            if frame.text_delta:
                written = frame.text_delta
                out.write(written)
                out.flush()
    except KeyboardInterrupt:
        return False
    finally:
        if written and not written.endswith("\n"):
            out.write("\n")
    return True
