"""Rows as users bring them: which kind a source has, and what each row must hold.

messages            a conversation, with optional `tools`; all turns of the assistant are learnt but those of weight 0
prompt/completion   strings, or lists of messages: the completion is learnt
text                everything is learnt
preference          `chosen` and `rejected`, behind a `prompt` or as whole conversations that begin alike
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.errors import InvalidInput

KINDS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "prompt/completion": ("prompt", "completion"),
    "text": ("text",),
}


class BadRow(InvalidInput):
    """A row that can't be trained on. The message is the reason; whoever knows it puts the row's place before."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and the indices of the messages that are learnt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    learnt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plain:
    """Two strings, of which the second is learnt."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string, all of it learnt."""

    text: str


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt."""

    chosen: Chat | Plain
    rejected: Chat | Plain


Row = Chat | Plain | Text | Preference


def with_standard_names(raw: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with its columns renamed to the standard names."""
    missing = [theirs for theirs in columns.values() if theirs not in raw]
    if missing:
        raise BadRow(f"no column {missing[0]!r}; it has {_names(raw)}")
    taken = {*columns.values(), *columns}
    kept = {name: value for name, value in raw.items() if name not in taken}
    return kept | {ours: raw[theirs] for ours, theirs in columns.items()}


def kind_of(raw: Mapping[str, Any]) -> str:
    """The first kind whose columns the row has. Raises BadRow when it has none's."""
    for kind, needed in KINDS.items():
        if all(raw.get(name) is not None for name in needed):
            return kind
    raise BadRow(f"needs messages, prompt and completion, text, or chosen and rejected; it has {_names(raw)}")


def parse(raw: Mapping[str, Any], kind: str, *, chat: bool = False) -> Row:
    """The row as its kind; `chat` makes messages of strings. Raises BadRow."""
    for name in KINDS[kind]:
        if raw.get(name) is None:
            raise BadRow(f"no {name}, which the first row of this source has; it has {_names(raw)}")
    tools = _tools(raw.get("tools"))
    if kind == "messages":
        return _chat(_messages(raw["messages"], "messages"), tools, 0, "messages")
    if kind == "text":
        return Text(_text(raw["text"], "text"))
    if kind == "prompt/completion":
        return _answer(raw["prompt"], raw["completion"], tools, "completion", chat)
    chosen, rejected = (_preferred(raw, name, tools, chat) for name in ("chosen", "rejected"))
    return _preference(chosen, rejected)


def texts(row: Row) -> Iterator[str]:
    """Every text of a row, for the training of a tokenizer."""
    if isinstance(row, Text):
        yield row.text
    elif isinstance(row, Plain):
        yield row.prompt
        yield row.completion
    elif isinstance(row, Chat):
        for message in row.messages:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            yield from (part["text"] for part in parts)
            yield from (json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls") or ())
        yield from (json.dumps(tool, ensure_ascii=False) for tool in row.tools or ())
    else:
        yield from texts(row.chosen)
        yield from texts(row.rejected)


def _answer(prompt: Any, answer: Any, tools: list[dict[str, Any]] | None, name: str, chat: bool) -> Chat | Plain:
    if isinstance(prompt, str) and isinstance(answer, str) and not chat:
        if not answer.strip():
            raise BadRow(f"{name} is empty")
        return Plain(prompt, answer)
    before = _messages(prompt, "prompt") if not isinstance(prompt, str) else [_said("user", _text(prompt, "prompt"))]
    after = _messages(answer, name) if not isinstance(answer, str) else [_said("assistant", _text(answer, name))]
    return _chat(before + after, tools, len(before), name)


def _preferred(raw: Mapping[str, Any], name: str, tools: list[dict[str, Any]] | None, chat: bool) -> Chat | Plain:
    """One side of a pair. A list that doesn't begin with the assistant is a whole conversation."""
    prompt, answer = raw.get("prompt"), raw[name]
    if not isinstance(answer, str):
        messages = _messages(answer, name)
        if messages[0]["role"] != "assistant":
            return _chat(messages, tools, 0, name)
    if prompt is None:
        raise BadRow(f"no prompt, and {name} isn't a whole conversation")
    return _answer(prompt, answer, tools, name, chat)


def _preference(chosen: Chat | Plain, rejected: Chat | Plain) -> Preference:
    if isinstance(chosen, Plain) or isinstance(rejected, Plain):
        if not (isinstance(chosen, Plain) and isinstance(rejected, Plain)):
            raise BadRow("chosen and rejected must both be strings, or both lists of messages")
        if chosen.completion == rejected.completion:
            raise BadRow("chosen and rejected are the same")
        return Preference(chosen, rejected)
    if chosen.messages == rejected.messages:
        raise BadRow("chosen and rejected are the same")
    pairs = zip(chosen.messages, rejected.messages, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(chosen.messages), len(rejected.messages)))
    if common == 0:
        raise BadRow("chosen and rejected don't begin with the same prompt")
    sides = [
        Chat(side.messages, side.tools, tuple(i for i in side.learnt if i >= common)) for side in (chosen, rejected)
    ]
    if not all(side.learnt for side in sides):
        raise BadRow("chosen and rejected must each hold a turn of the assistant after what they share")
    return Preference(*sides)


def _chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, first: int, name: str) -> Chat:
    """A conversation whose assistant's turns from `first` on are learnt."""
    turns = [i for i, message in enumerate(messages) if i >= first and message["role"] == "assistant"]
    if not turns:
        raise BadRow(f"{name} holds no turn of the assistant")
    if turns[0] == 0:
        raise BadRow(f"{name} begins with the assistant; a user's or system message must come before")
    learnt = tuple(i for i in turns if messages[i].get("weight") != 0)
    if not learnt:
        raise BadRow(f"{name}: every turn of the assistant has weight 0, so nothing is learnt")
    return Chat(messages, tools, learnt)


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise BadRow(f"{name} must be a list of messages, got {_short(value)}")
    return [_message(item, f"{name}[{i}]") for i, item in enumerate(value)]


def _message(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRow(f"{name} must be an object with role and content, got {_short(value)}")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or not role:
        raise BadRow(f"{name}.role must be a word such as 'user', got {_short(role)}")
    calls = value.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls)):
        raise BadRow(f"{name}.tool_calls must be a list of objects, got {_short(calls)}")
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise BadRow(f"{name}.content must be text or a list of text parts, got {_short(content)}")
        empty = not any(part["text"].strip() for part in content)
    elif content is None or isinstance(content, str):
        empty = not (content or "").strip()
    else:
        raise BadRow(f"{name}.content must be text, got {_short(content)}")
    if role == "assistant" and empty and not calls:
        raise BadRow(f"{name}.content is empty")
    if value.get("weight") not in (None, 0, 1):
        raise BadRow(f"{name}.weight must be 0 or 1, got {_short(value['weight'])}")
    return dict(value)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    """A list of function schemas, or the JSON text of one, as datasets on the hub have it."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadRow(f"tools must be a list of function schemas or its JSON, got {_short(value)}") from None
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise BadRow(f"tools must be a list of function schemas, got {_short(value)}")
    return [dict(tool) for tool in value]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRow(f"{name} must be text, got {_short(value)}")
    if not value.strip():
        raise BadRow(f"{name} is empty")
    return value


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _names(raw: Mapping[str, Any]) -> str:
    return ", ".join(sorted(name for name, value in raw.items() if value is not None)) or "nothing"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
