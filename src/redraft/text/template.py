"""Chat templates: from messages to the text of a prompt, knowing which control strings the template itself wrote.

A user who writes `<|role_end|>` must not end their turn. The text of a prompt is therefore kept together with the
places of the control strings that come *from the template*; the tokenizer maps these, and only these, to ids.

To find them, the messages are rendered a second time with the first and last character of every control string
replaced, throughout the messages, by stand-ins from Unicode's private use area: a control string that is still
there was written by the template, however it joins and cuts the contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from redraft.errors import InvalidInput
from redraft.text.sandbox import SandboxedTemplate

ROLE = re.compile(r"[A-Za-z_]{1,32}")
PRIVATE_USE = range(0x100000, 0x10FFFE)
MAX_DEPTH = 64  # of lists and objects in messages and tools


@dataclass(frozen=True, slots=True)
class Rendered:
    """text, and the spans [start, end) of the control strings that the template wrote, in order."""

    text: str
    controls: tuple[tuple[int, int], ...]


class ChatTemplate:
    """The chat template of a checkpoint.

    source: Jinja, in the dialect of transformers. controls: the control strings.
    variables: what else the template may name (`eos_token` and its like).
    """

    def __init__(self, source: str, controls: Iterable[str], variables: Mapping[str, Any]) -> None:
        self._template = SandboxedTemplate(source)
        strings = sorted(controls, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, strings)) or r"(?!)")
        self._guarded = "".join(sorted({char for string in strings for char in _border(string)}))
        self._source = source
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """Raises InvalidInput for messages that aren't ones, and TemplateError when the template fails."""
        _check(messages, tools)
        text = self._text(messages, tools, add_generation_prompt)
        found = self._find(text)
        content = "\0".join(_strings([messages, tools]))
        if not any(char in content for char in self._guarded):
            return Rendered(text, found)
        stand_ins = self._stand_ins(content)
        guard = str.maketrans(stand_ins)
        guarded_text = self._text(_translated(messages, guard), _translated(tools, guard), add_generation_prompt)
        guarded = self._find(guarded_text)
        if guarded == found:
            return Rendered(text, found)
        same_controls = [text[a:b] for a, b in found] == [guarded_text[a:b] for a, b in guarded]
        if same_controls and not self._controls.search(content):
            # The template looked for one of the replaced characters in a content, as for `</think>`.
            return Rendered(text, found)
        restored = guarded_text.translate({ord(name): char for char, name in stand_ins.items()})
        return Rendered(restored, guarded)

    def _stand_ins(self, content: str) -> dict[int, str]:
        """For each guarded character one that neither the contents nor the template use."""
        used = {*content, *self._source}
        unused = (char for code in PRIVATE_USE if (char := chr(code)) not in used)
        free = list(islice(unused, len(self._guarded)))
        if len(free) < len(self._guarded):
            raise InvalidInput("messages use up Unicode's private use area; leave some of plane 16 out")
        return {ord(char): name for char, name in zip(self._guarded, free, strict=True)}

    def _find(self, text: str) -> tuple[tuple[int, int], ...]:
        return tuple(match.span() for match in self._controls.finditer(text))

    def _text(self, messages: Any, tools: Any, add_generation_prompt: bool) -> str:
        return self._template.render(
            {
                **self._variables,
                "messages": messages,
                "tools": tools or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )


def _border(control: str) -> tuple[str, str]:
    """First and last character that isn't a letter or digit, if any: replacing letters would spoil `type` fields."""
    marks = [char for char in control if not char.isalnum()] or list(control)
    return marks[0], marks[-1]


def _check(messages: Any, tools: Any) -> None:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise InvalidInput(f"messages must be a list of at least one message, got {_short(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidInput(f"messages[{index}] must be an object with a role, got {_short(message)}")
        role = message.get("role")
        if not isinstance(role, str) or not ROLE.fullmatch(role):
            raise InvalidInput(f"messages[{index}].role must be a word such as 'user', got {_short(role)}")
    if tools is not None and (isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence)):
        raise InvalidInput(f"tools must be a list of function schemas, got {_short(tools)}")
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise InvalidInput(f"tools[{index}] must be a function schema, got {_short(tool)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _strings(value: Any, depth: int = 0) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif depth > MAX_DEPTH:
        raise InvalidInput(f"messages and tools may be nested {MAX_DEPTH} deep, these are deeper")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item, depth + 1)


def _translated(value: Any, table: Any) -> Any:
    """A copy with every string, keys included, translated; the roles are words, so they stay as they are."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, Mapping):
        return {
            _translated(key, table): item if key == "role" else _translated(item, table) for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_translated(item, table) for item in value]
    return value
