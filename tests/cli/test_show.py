from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import frames
from rich.console import Console

from redraft.cli.frames import Frame
from redraft.cli.show import drain, paced, show
from redraft.cli.trace import Header, TraceWriter
from redraft.cli.view import ViewState

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def interrupted_after(count: int) -> Iterator[Frame]:
    yield from frames()[:count]
    raise KeyboardInterrupt


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=60, height=20, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_sees_the_draft_and_keeps_the_answer() -> None:
    console = terminal()
    assert show(iter(frames()), ViewState(prompt="Max?"), console)
    shown = written(console)
    assert "░" in shown and "had" in shown
    assert "Max has 5界" in shown[shown.rindex(SHOW) :]
    assert "TPF 1.40" in shown[shown.rindex(SHOW) :]


def test_ctrl_c_restores_the_terminal_and_leaves_what_was_there() -> None:
    console = terminal()
    state = ViewState(prompt="Max?")
    assert not show(interrupted_after(1), state, console)
    shown = written(console)
    assert shown.count(HIDE) == shown.count(SHOW) == 1
    assert "Max ░░" in shown[shown.index(SHOW) :]


def test_a_pipe_gets_frozen_text_only() -> None:
    console = Console(file=io.StringIO())
    assert show(iter(frames()), ViewState(prompt="Max?"), console)
    assert written(console) == "Max has 5界\n"


def test_a_pipe_keeps_frozen_text_after_ctrl_c() -> None:
    console = Console(file=io.StringIO())
    assert not show(interrupted_after(4), ViewState(), console)
    assert written(console) == "Max has \n"


def test_a_dumb_terminal_is_written_to_like_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = terminal()
    assert show(iter(frames()), ViewState(), console)
    assert written(console) == "Max has 5界\n"


def test_errors_of_the_model_pass_through_and_restore_the_terminal() -> None:
    def broken() -> Iterator[Frame]:
        yield frames()[0]
        raise ArithmeticError("NaN")

    console = terminal()
    with pytest.raises(ArithmeticError):
        show(broken(), ViewState(), console)
    assert written(console).count(SHOW) == 1


def test_drain_feeds_unseen() -> None:
    state = ViewState()
    assert drain(iter(frames()), state)
    assert state.text == "Max has 5界"
    assert not drain(interrupted_after(2), state)


def test_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    at = (0.0, 0.1, 0.1, 50.0)
    items = [replace(frames()[0], seconds=second) for second in at]
    assert list(paced(items, speed=0.5, shortest=0.05)) == items
    assert naps == pytest.approx([0.2, 0.05, 2.0])


def test_ctrl_c_in_a_real_terminal(tmp_path: Path) -> None:
    """The whole command in a pseudo-terminal: SIGINT in the middle of a replay gives exit code 130."""
    path = tmp_path / "slow.jsonl"
    with TraceWriter(path, Header("0", "m", "Max?", False, (0, 1), {})) as writer:
        for number, frame in enumerate(frames()):
            writer.write(replace(frame, seconds=float(30 * (number // 2))))
    leader, follower = pty.openpty()
    # A shell's background job ignores SIGINT, and would pass that on to the command under test.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from redraft.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "replay", str(path)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    shown = ""
    while "had" not in shown:
        shown += os.read(leader, 4096).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk.decode(errors="replace")
    except OSError:  # Linux ends a pseudo-terminal with EIO
        pass
    os.close(leader)
    assert process.wait(timeout=20) == 130
    assert HIDE in shown and SHOW in shown
    assert "Traceback" not in shown
