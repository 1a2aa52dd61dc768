"""`redraft chat`: a conversation in the terminal, each answer seen while it is drafted and edited."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from redraft.cli import options
from redraft.cli.conversation import Conversation, is_command, obey
from redraft.cli.frames import Frame
from redraft.cli.remote import RemoteSession
from redraft.cli.session import Session
from redraft.errors import InvalidInput, RedraftError

if TYPE_CHECKING:
    from rich.console import Console

INVITATION = "> "
CONTINUATION = ". "


class Backend(Protocol):
    """Who answers: a model in this process, or a server."""

    @property
    def model(self) -> str: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def reply(self, messages: Sequence[Mapping[str, str]], given: Mapping[str, Any]) -> Generator[Frame]: ...


def chat(
    model: options.Model = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Talk to the `redraft serve` at this address instead of a model here.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", envvar="REDRAFT_API_KEY", help="The API key that the server wants.")
    ] = None,
    system: Annotated[str, typer.Option("--system", help="The system prompt.", show_default=False)] = "",
    mode: options.Mode = None,
    modes: options.Modes = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of `redraft generate`; may be repeated."),
    ] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
) -> None:
    """Talk with a model: live in a terminal; in a pipe each line is a message. /help lists the commands.

    Example: redraft chat --url http://127.0.0.1:8000 --mode speed --set max_tokens=512
    """
    if url is not None and modes is not None:
        raise InvalidInput(f"modes belongs to a model in this process; a server has its own, got {modes}")
    # A server says which modes it has; what is wrong for a model here is told before it is loaded.
    remote = _remote(url, key, model, device, dtype, threads) if url is not None else None
    named = remote.modes if remote is not None else options.named_modes(model, modes)
    conversation = Conversation("", system=system, modes=named)
    if mode is not None:
        conversation.set("mode", mode)
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals or not text:
            raise InvalidInput(f"set must be NAME=VALUE such as max_tokens=512, got {setting!r}")
        conversation.set(name.strip().replace("-", "_"), text.strip())
    backend = remote or Session.load(model, device, dtype, threads)
    conversation.model, conversation.special_ids = backend.model, backend.special_ids
    from rich.console import Console

    console = Console(highlight=False)
    typing = sys.stdin.isatty()
    if typing and console.is_terminal:
        console.print(f"{backend.model}, mode {conversation.mode}. /help lists the commands.", style="dim")
    converse(backend, conversation, typed() if typing else piped(), console, forgiving=typing)


def converse(
    backend: Backend, conversation: Conversation, lines: Iterable[str], console: Console, *, forgiving: bool
) -> None:
    """Answers messages and carries out commands, line by line.

    forgiving: an error is told and an interrupted answer left, and the conversation goes on; otherwise either ends it.
    """
    for line in lines:
        if not line.strip():
            continue
        try:
            if is_command(line):
                console.print(obey(conversation, line), style="dim", markup=False, soft_wrap=True)
            elif not _answer(backend, conversation, line.removeprefix("/"), console) and not forgiving:
                raise typer.Exit(options.INTERRUPTED)
        except EOFError:
            return
        except RedraftError as error:
            if not forgiving:
                raise
            console.print(" ".join(str(error).split()), style="red", markup=False, soft_wrap=True)


def typed() -> Iterator[str]:
    """Messages as they are typed in a terminal, with line editing. Ctrl-C drops a line, Ctrl-D ends them."""
    with suppress(ImportError):  # not on Windows
        import readline  # noqa: F401 - input() then knows arrows and earlier lines

    while True:
        try:
            yield joined(input(INVITATION), lambda: input(CONTINUATION))
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def piped() -> Iterator[str]:
    """Messages from standard input that is no terminal, one a line."""
    lines = (options.reading("standard input", lambda line=line: line) for line in sys.stdin.buffer)
    for line in lines:
        yield joined(line, lambda: next(lines, ""))


def joined(text: str, read: Callable[[], str]) -> str:
    """One message: a line, and those after it while they end in a backslash."""
    while text.endswith("\\"):
        text = text[:-1] + "\n" + read()
    return text


def _answer(backend: Backend, conversation: Conversation, text: str, console: Console) -> bool:
    """Shows the answer to a message and keeps both; False when Ctrl-C cut it short. Nothing is kept of a message that
    has no answer."""
    from redraft.cli.show import show
    from redraft.cli.view import ViewState

    state = ViewState(special_ids=backend.special_ids)
    asked = {"role": "user", "content": text}
    frames: list[Frame] = []
    with closing(backend.reply([*conversation.whole, asked], conversation.request)) as coming:
        reached_end = show(_kept(coming, frames), state, console)
    if state.text or reached_end:
        conversation.frames = frames
        conversation.messages += [asked, {"role": "assistant", "content": state.text}]
    return reached_end


def _kept(frames: Iterator[Frame], into: list[Frame]) -> Iterator[Frame]:
    for frame in frames:
        into.append(frame)
        yield frame


def _remote(
    url: str, key: str | None, model: str | None, device: str | None, dtype: str | None, threads: int | None
) -> RemoteSession:
    local = {"model": model, "device": device, "dtype": dtype, "threads": threads}
    for name, value in local.items():
        if value is not None:
            raise InvalidInput(f"{name} belongs to a model in this process, not to a server: --{name} or --url")
    return RemoteSession.connect(url, key)
