"""The conversation's loop and the verb, with the scripted model."""

from __future__ import annotations

import builtins
import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FakeLLM, session
from rich.console import Console

from redraft.cli.chat import converse, joined, piped, typed
from redraft.cli.conversation import Conversation
from redraft.cli.main import run
from redraft.cli.trace import read_trace
from redraft.errors import InvalidInput, NumericalError
from redraft.types import SamplingParams

ANSWER = "Max has 5界"


class Stdin:
    """Standard input as the command sees it."""

    def __init__(self, content: bytes, terminal: bool = False) -> None:
        self.buffer = io.BytesIO(content)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def talk(llm: FakeLLM, *lines: str, forgiving: bool = True) -> tuple[Conversation, str]:
    """What became of the conversation, and what stood on the screen."""
    conversation = Conversation("nano", frozenset({0, 1}))
    console = Console(file=io.StringIO(), width=300)
    converse(session(llm), conversation, lines, console, forgiving=forgiving)
    assert isinstance(console.file, io.StringIO)
    return conversation, console.file.getvalue()


def test_every_turn_is_sent_with_those_before_it() -> None:
    llm = FakeLLM()
    conversation, shown = talk(llm, "Hi!", "   ", "And now?")
    assert shown == f"{ANSWER}\n" * 2
    assert [message["content"] for message in conversation.messages] == ["Hi!", ANSWER, "And now?", ANSWER]
    assert [asked for asked, _ in llm.asked] == [[3], [3, len(ANSWER), 8]]  # the fake renders lengths


def test_commands_change_how_the_next_message_is_answered() -> None:
    llm = FakeLLM()
    _, shown = talk(llm, "/mode speed", "/set max-tokens 40", "/system Be brief.", "Hi!")
    asked, params = llm.asked[0]
    assert asked == [len("Be brief."), 3]
    assert params == SamplingParams(mode="speed", max_tokens=40)
    assert "mode speed" in shown and "max_tokens 40" in shown and "system prompt set" in shown


def test_two_slashes_begin_a_message() -> None:
    conversation, _ = talk(FakeLLM(), "//etc is a folder")
    assert conversation.messages[0]["content"] == "/etc is a folder"


def test_quit_ends_it() -> None:
    llm = FakeLLM()
    talk(llm, "/quit", "never asked")
    assert not llm.asked


def test_an_error_is_told_and_the_conversation_goes_on() -> None:
    class Failing(FakeLLM):
        def render(self, messages: object, tools: object = None) -> list[int]:
            if "fail" in str(messages):
                raise NumericalError("logits are\nnot finite")
            return super().render(messages, tools)

    conversation, shown = talk(Failing(), "fail", "/nonsense", "Hi!")
    assert "logits are not finite\n" in shown and "/nonsense" in shown
    assert [message["content"] for message in conversation.messages] == ["Hi!", ANSWER]
    with pytest.raises(NumericalError):
        talk(Failing(), "fail", forgiving=False)
    with pytest.raises(InvalidInput, match="/nonsense"):
        talk(FakeLLM(), "/nonsense", forgiving=False)


def test_an_interrupted_answer_keeps_its_frozen_text() -> None:
    conversation, shown = talk(FakeLLM(interrupt_at=4), "Hi!", "Go on.")
    assert shown == "Max has \n" * 2
    assert [message["content"] for message in conversation.messages] == ["Hi!", "Max has ", "Go on.", "Max has "]


def test_a_message_without_an_answer_is_forgotten() -> None:
    conversation, _ = talk(FakeLLM(interrupt_at=2), "Hi!")
    assert conversation.messages == [] and conversation.frames == []


def test_a_terminal_sees_the_canvas() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=20, color_system=None)
    converse(session(FakeLLM()), Conversation("nano"), ["Hi!"], console, forgiving=True)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "░" in shown and "had" in shown and "TPF 1.40" in shown


def test_the_last_answer_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    _, shown = talk(FakeLLM(), "First", "Second", f"/trace {path}")
    assert "5 steps" in shown
    header, frames = read_trace(path)
    assert (header.prompt, header.model, header.special_ids) == ("Second", "nano", (0, 1))
    assert len(frames) == 5 and frames[-1].finish is not None


def test_the_verb_takes_settings_and_messages_from_a_pipe(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("Grüße\\\nzwei\n/mode\nHi".encode()))
    arguments = ["chat", "--system", "Be brief.", "--mode", "speed", "--set", "top-k=5", "--set", "stop==,"]
    assert run(arguments) == 0
    assert capsys.readouterr().out == f"{ANSWER}\nmode speed\n{ANSWER}\n"
    assert [asked for asked, _ in llm.asked] == [[9, len("Grüße\nzwei")], [9, 10, len(ANSWER), 2]]
    assert llm.asked[0][1] == SamplingParams(mode="speed", top_k=5, stop=("=,",))


def test_an_interrupt_in_a_pipe_ends_the_command(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.interrupt_at = 4
    monkeypatch.setattr(sys, "stdin", Stdin(b"one\ntwo\n"))
    assert run(["chat"]) == 130
    assert capsys.readouterr().out == "Max has \n"
    assert len(llm.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "warp=9"], "unknown setting 'warp'"),
        (["--set", "top_k"], "NAME=VALUE"),
        (["--set", "top_k="], "NAME=VALUE"),
        (["--set", "n=2"], "unknown setting 'n'"),
        (["--mode", "warp"], "mode must be"),
        (["--url", "http://127.0.0.1:1", "--model", "folder"], "--model or --url"),
        (["--url", "http://127.0.0.1:1", "--threads", "2"], "--threads or --url"),
        (["--url", "localhost:8000"], "url must be an address"),
        (["--url", "ftp://host"], "url must be an address"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


def test_lines_that_are_not_utf8_are_refused(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"\xff\n"))
    assert run(["chat"]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_backslash_joins_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = iter(["b\\", "c"])
    assert joined("a\\", lambda: next(rest)) == "a\nb\nc"
    monkeypatch.setattr(sys, "stdin", Stdin(b"last\\"))
    assert list(piped()) == ["last\n"]


def test_typed_lines_end_with_ctrl_d_and_ctrl_c_drops_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def presses() -> Iterator[str | type[BaseException]]:
        yield from ["one\\", "more", KeyboardInterrupt, "two", EOFError]

    coming = presses()

    def read(_: str) -> str:
        pressed = next(coming)
        if isinstance(pressed, str):
            return pressed
        raise pressed

    monkeypatch.setattr(builtins, "input", read)
    assert list(typed()) == ["one\nmore", "two"]


def test_in_a_real_terminal(tmp_path: Path) -> None:
    """The verb in a pseudo-terminal: the invitation, a command, earlier lines by the arrow key, Ctrl-D."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from fakes import FakeLLM, session\n"
        "from redraft.cli.session import Session\n"
        "Session.load = classmethod(lambda *_: session(FakeLLM()))\n"
        "from redraft.cli.main import main\nmain()\n"
    )
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, "chat"]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(leader, 4096).decode(errors="replace")
        shown = shown[shown.index(text) + len(text) :]

    until("/help lists the commands")
    until("> ")
    os.write(leader, b"/mode speed\n")
    until("mode speed")
    until("> ")
    os.write(leader, b"Hi!\n")
    until("TPF 1.40")
    until("> ")
    os.write(leader, b"\x1b[A\x1b[A\n")  # two lines up: the command again
    until("mode speed")
    until("> ")
    os.write(leader, b"\x04")
    assert process.wait(timeout=60) == 0
    os.close(leader)
