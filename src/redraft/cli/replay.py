"""`redraft replay`: shows a trace file again, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redraft.cli import options


def replay(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A file that `redraft generate --trace` wrote.")],
    speed: Annotated[float, typer.Option("--speed", help="2 is twice as fast as it was, 0.5 half as fast.")] = 1.0,
) -> None:
    """Show a trace file again: live in a terminal, as plain text in a pipe.

    Example: redraft replay sort.jsonl --speed 0.2
    """
    options.positive("speed", speed)
    from rich.console import Console

    from redraft.cli.show import paced, show
    from redraft.cli.trace import read_trace
    from redraft.cli.view import ViewState

    header, frames = read_trace(path)
    state = ViewState(prompt=header.prompt, raw=header.raw, special_ids=frozenset(header.special_ids))
    console = Console(highlight=False)
    shown = paced(frames, speed) if console.is_terminal else iter(frames)
    if not show(shown, state, console):
        raise typer.Exit(options.INTERRUPTED)
