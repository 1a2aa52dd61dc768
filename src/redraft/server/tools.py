"""Calls of tools in the text of an answer: how each kind of chat template has them written, and finding them in a
stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.server.errors import invalid, unsupported
from redraft.server.schema import SchemaError, fits, require_schema

MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class Notation:
    """How calls stand in the text: JSON between two marks; without an end they go on to the end of the text."""

    start: str
    end: str | None


# The first whose start stands in the chat template is that of the checkpoint.
NOTATIONS = (
    Notation("<tool_call>", "</tool_call>"),  # Hermes, Qwen, Ling and LLaDA2, SmolLM2, the embedded model
    Notation("<function_call>", "</function_call>"),
    Notation("<|tool_call|>", None),  # Granite
)


@dataclass(frozen=True, slots=True)
class Call:
    """arguments: JSON as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools that a request offers. functions: name → JSON schema of the arguments."""

    notation: Notation
    functions: Mapping[str, Any]

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]], template: str | None) -> Toolset:
        """tools: as in a request. Raises ApiError when the template can't offer them, or a schema isn't one."""
        if len(tools) > MAX_TOOLS:
            raise invalid(f"tools may be {MAX_TOOLS} at most, got {len(tools)}", "tools")
        notation = next((found for found in NOTATIONS if found.start in (template or "")), None)
        if notation is None or "tools" not in (template or ""):
            raise unsupported("tools", "the checkpoint's chat template doesn't say how its calls are written")
        functions = {}
        for index, tool in enumerate(tools):
            function, where = tool["function"], f"tools[{index}].function"
            if function["name"] in functions:
                raise invalid(f"{where}.name must be another for each tool, got {function['name']!r} twice", where)
            schema = function.get("parameters")
            functions[function["name"]] = {} if schema is None else schema
            try:
                require_schema(functions[function["name"]])
            except SchemaError as error:
                raise invalid(f"{where}.parameters: {error}", f"{where}.parameters") from None
        return cls(notation, functions)

    def calls(self, text: str) -> list[Call] | None:
        """The calls that JSON between the marks makes; None if it isn't JSON, or one of them fits no tool."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        several = found if isinstance(found, list) else [found]
        calls = [self._call(one) for one in several]
        return [call for call in calls if call] if calls and all(calls) else None

    def _call(self, found: Any) -> Call | None:
        if not isinstance(found, dict) or not isinstance(name := found.get("name"), str) or name not in self.functions:
            return None
        arguments = found.get("arguments", found.get("parameters", {}))
        try:
            good = isinstance(arguments, dict) and fits(arguments, self.functions[name])
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (SchemaError, ValueError):
            return None
        return Call(f"call_{secrets.token_hex(12)}", name, written) if good else None


class Splitter:
    """Takes the text of an answer apart, as it comes, into contents and calls. What the two yield, contents joined, is
    the same however the text was cut. toolset: None lets all text through."""

    def __init__(self, toolset: Toolset | None) -> None:
        self.found = 0  # calls so far
        self._toolset = toolset
        self._held = ""  # what may still become a mark, or white space before one
        self._space = ""  # white space before a mark, which goes out if no call follows
        self._open = False  # a mark has come, and its end hasn't

    def push(self, text: str) -> Iterable[str | Call]:
        if self._toolset is None:
            if text:
                yield text
            return
        start, end = self._toolset.notation.start, self._toolset.notation.end
        self._held += text
        while True:
            if not self._open:
                at = self._held.find(start)
                if at < 0:
                    keep = _tail(self._held, start)
                    if keep < len(self._held):
                        yield self._held[: len(self._held) - keep]
                    self._held = self._held[len(self._held) - keep :]
                    return
                before, self._held, self._open = self._held[:at], self._held[at + len(start) :], True
                self._space = before[len(before.rstrip()) :]
                if before.strip():
                    yield before.rstrip()
            at = self._held.find(end) if end else -1
            if at < 0:
                return
            body, self._held = self._held[:at], self._held[at + len(end or "") :]
            self._open = False
            yield from self._after(body, f"{start}{body}{end}")

    def finish(self) -> Iterable[str | Call]:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        if self._toolset is None or not self._open:
            if held.strip() or (held and not self.found):
                yield held
        elif self._toolset.notation.end is None:
            yield from self._after(held, self._toolset.notation.start + held)
        else:
            yield self._space + self._toolset.notation.start + held

    def _after(self, body: str, written: str) -> Iterable[str | Call]:
        calls = self._toolset.calls(body) if self._toolset else None
        if calls is None:
            yield self._space + written
        else:
            self.found += len(calls)
            yield from calls


def _tail(text: str, mark: str) -> int:
    """How much of the text's end may still turn out to be white space before the mark, or the mark itself."""
    longest = min(len(text), len(mark) - 1)
    part = next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
    rest = text[: len(text) - part]
    return part + len(rest) - len(rest.rstrip())
