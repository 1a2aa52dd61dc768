"""The conversation of `redraft chat` and the commands that change it. Nothing here prints or generates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from redraft.cli import options
from redraft.cli.frames import Frame
from redraft.cli.trace import Header, TraceWriter
from redraft.engine.named import Modes, with_mode
from redraft.errors import InvalidInput
from redraft.types import SamplingParams

# A conversation goes on from one answer, as text.
SETTINGS = tuple(item.name for item in dataclass_fields(SamplingParams) if item.name not in ("n", "logprobs"))
LISTS = ("stop", "stop_token_ids")
ROLES = ("system", "user", "assistant")


@dataclass
class Conversation:
    """model: the name written into traces. system: the system prompt. messages: the turns after it.
    given: settings that aren't the defaults. frames: those of the last answer. special_ids: control tokens.
    file: where the conversation was saved or loaded, which may be written again.
    modes: what names of modes stand for, besides the built-in ones."""

    model: str
    special_ids: frozenset[int] = frozenset()
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    file: Path | None = None
    modes: Modes = field(default_factory=dict)

    @property
    def whole(self) -> list[dict[str, str]]:
        """All messages, the system prompt first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.messages

    @property
    def request(self) -> dict[str, Any]:
        """The settings with the mode resolved."""
        return with_mode(self.given, self.modes)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(**self.request)

    @property
    def mode(self) -> str:
        return self.given.get("mode", SamplingParams().mode)

    def set(self, name: str, text: str) -> None:
        """Sets a field of SamplingParams as it is typed; an empty text brings the default back. Raises InvalidInput."""
        if name not in SETTINGS:
            raise InvalidInput(f"unknown setting {name!r}; known: {', '.join(SETTINGS)}")
        changed = {key: value for key, value in self.given.items() if key != name}
        if text:
            changed[name] = value_of(name, text)
        SamplingParams(**with_mode(changed, self.modes))  # refuses what is out of range
        self.given = changed


def value_of(name: str, text: str) -> Any:
    """The value of a setting as it is typed: JSON where it is JSON, else the text itself."""
    if name == "logit_bias":
        return dict(map(options.bias, text.split()))
    if name == "stop" and not text.startswith(("[", '"')):
        return [text]
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return [value] if name in LISTS and not isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Command:
    """argument, help: as `/help` shows them. run: carries it out and returns what there is to say."""

    argument: str
    help: str
    run: Callable[[Conversation, str], str]


def is_command(line: str) -> bool:
    """Whether a line is a command; a message that begins with a slash is typed with two."""
    return line.startswith("/") and not line.startswith("//")


def obey(conversation: Conversation, line: str) -> str:
    """Carries out a command and returns what there is to say. Raises InvalidInput, and EOFError for `/quit`."""
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        raise InvalidInput(f"unknown command /{name}; /help lists the commands")
    return COMMANDS[name].run(conversation, argument.strip())


def _mode(conversation: Conversation, argument: str) -> str:
    if argument:
        conversation.set("mode", argument)
    return f"mode {conversation.mode}"


def _set(conversation: Conversation, argument: str) -> str:
    if not argument:
        return _settings(conversation)
    name, *value = re.split(r"[\s=]\s*", argument, maxsplit=1)
    conversation.set(name.replace("-", "_"), "".join(value))
    return _settings(conversation)


def _settings(conversation: Conversation) -> str:
    given = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in conversation.given.items()]
    return "\n".join(given or ["all settings have their defaults"])


def _system(conversation: Conversation, argument: str) -> str:
    conversation.system = argument
    return "system prompt set" if argument else "no system prompt"


def _new(conversation: Conversation, argument: str) -> str:
    _no_argument("new", argument)
    conversation.messages, conversation.frames, conversation.file = [], [], None
    return "a new conversation"


def _history(conversation: Conversation, argument: str) -> str:
    _no_argument("history", argument)
    turns = [f"{message['role']}: {message['content']}" for message in conversation.whole]
    return "\n".join(turns or ["nothing was said yet"])


def _save(conversation: Conversation, argument: str) -> str:
    path = _path("save", argument)
    if path.exists() and path != conversation.file:
        raise InvalidInput(f"{path} exists; save under another name")
    if not conversation.messages:
        raise InvalidInput("nothing was said yet")
    record = json.dumps({"messages": conversation.whole}, ensure_ascii=False)
    try:
        path.write_text(record + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error
    conversation.file = path
    return f"{len(conversation.whole)} messages saved to {path}"


def _load(conversation: Conversation, argument: str) -> str:
    path = _path("load", argument)
    text = options.read_text(path)
    try:
        messages = json.loads(text)["messages"]
        right = bool(messages) and all(
            message["role"] in ROLES and isinstance(message["content"], str) for message in messages
        )
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        raise InvalidInput(f'{path} must hold one line, {{"messages": [{{"role": …, "content": …}}, …]}}')
    messages = [{"role": message["role"], "content": message["content"]} for message in messages]
    first = messages[0]["role"] == "system"
    conversation.system = messages[0]["content"] if first else ""
    conversation.messages = messages[first:]
    conversation.frames, conversation.file = [], path
    return f"{len(messages)} messages loaded from {path}"


def _trace(conversation: Conversation, argument: str) -> str:
    path = _path("trace", argument)
    if not conversation.frames:
        raise InvalidInput("nothing was answered yet")
    asked = next(message["content"] for message in reversed(conversation.messages) if message["role"] == "user")
    header = Header.of(conversation.model, asked, False, conversation.special_ids, conversation.params)
    with TraceWriter(path, header) as writer:
        for frame in conversation.frames:
            writer.write(frame)
    return f"{len(conversation.frames)} steps written to {path}; redraft replay {path} shows them"


def _help(conversation: Conversation, argument: str) -> str:
    _no_argument("help", argument)
    rows = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"{usage:<{width}}  {text}" for usage, text in rows]
    return "\n".join([*lines, "A line that ends in \\ goes on in the next; // begins a message with a slash."])


def _quit(conversation: Conversation, argument: str) -> str:
    _no_argument("quit", argument)
    raise EOFError


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise InvalidInput(f"/{name} takes nothing after it, got {argument!r}")


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise InvalidInput(f"/{name} needs a file name")
    return Path(argument).expanduser()


COMMANDS = {
    "mode": Command("[MODE]", "show the mode, or take speed, quality, draft-only or one of `redraft tune`", _mode),
    "set": Command("[NAME [VALUE]]", "show the settings, or change one; without a value its default comes back", _set),
    "system": Command("[TEXT]", "take this system prompt, or none", _system),
    "new": Command("", "forget what was said", _new),
    "history": Command("", "show what was said", _history),
    "save": Command("FILE", "write the conversation, as a line that redraft can also train on", _save),
    "load": Command("FILE", "go on with a saved conversation", _load),
    "trace": Command("FILE", "write the steps of the last answer, for redraft replay", _trace),
    "help": Command("", "show this list", _help),
    "quit": Command("", "leave; so does Ctrl-D", _quit),
}
