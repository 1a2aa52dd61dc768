"""Prompts of one's own, one a line, and how their answers are graded."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from redraft.errors import InvalidInput
from redraft.eval.task import Item

FIELDS = ("prompt", "messages", "tools", "answer", "domain", "max_tokens")
MAX_TOKENS = 256
GRADERS = ("exact", "contains")
Grade = Callable[[Mapping[str, Any], str], float]
"""Of the object of a line and a response."""


@dataclass(frozen=True)
class OwnSuite:
    """A JSONL file. Each line is an object with `prompt` (text) or `messages` (a conversation), and may have `tools`,
    `answer` (what the grader compares with; any JSON), `domain` (the row of the report; "all" without it), and
    `max_tokens` (256).

    grader: "exact" (the answer and nothing else, but for white space around it), "contains", or FILE.py:FUNCTION, which
    is called with the line's object and the response and returns a number from 0 to 1. None: nothing is graded, so that
    only `redraft eval frontier` and `redraft tune` can use it, by agreement with quality mode. A function of a file is
    the user's own code: it runs in this process.
    """

    path: str
    grader: str | None = None

    @property
    def name(self) -> str:
        """With the hash of the file that a function comes from: after a change its scores are others."""
        parts = [Path(self.path).name]
        if self.grader is not None:
            path = Path(self.grader.rpartition(":")[0])
            version = f"@{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}" if path.is_file() else ""
            parts.append(f"{path.name}:{self.grader.rpartition(':')[2]}{version}" if version else self.grader)
        return ":".join(parts)

    def items(self) -> list[Item]:
        _ = self._grader
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}") from error
        items = [self._item(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not items:
            raise InvalidInput(f"{self.path} has no prompts")
        return items

    def grade(self, item: Item, response: str) -> float:
        return self._grader(item.reference, response)

    @property
    def _grader(self) -> Grade:
        match self.grader:
            case None:
                return _ungraded
            case "exact":
                return lambda row, response: float(response.strip() == str(row["answer"]).strip())
            case "contains":
                return lambda row, response: float(str(row["answer"]).strip() in response)
            case text:
                return _function(text)

    def _item(self, number: int, line: str) -> Item:
        where = f"{self.path} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{where} is not JSON: {error}") from None
        if not isinstance(row, dict) or ("prompt" in row) == ("messages" in row):
            raise InvalidInput(f"{where} must be an object with either prompt or messages")
        for name in row:
            if name not in FIELDS and self.grader in (None, *GRADERS):  # a function may want more
                raise InvalidInput(f"{where}: unknown field {name!r}; known: {', '.join(FIELDS)}")
        if self.grader in GRADERS and "answer" not in row:
            raise InvalidInput(f"{where}: answer is missing, and the grader {self.grader} compares with it")
        messages = row.get("messages", [{"role": "user", "content": row.get("prompt")}])
        tools, domain, most = row.get("tools", []), row.get("domain", "all"), row.get("max_tokens", MAX_TOKENS)
        if not _are_messages(messages):
            raise InvalidInput(f"{where}: prompt must be text, messages a list of {{role, content}}")
        if not isinstance(tools, list) or not isinstance(domain, str) or not domain:
            raise InvalidInput(f"{where}: tools must be a list and domain a text that isn't empty")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidInput(f"{where}: max_tokens must be an integer of at least 1, got {most!r}")
        own = {**row, "line": number}
        return Item(suite=self.name, task=domain, messages=messages, tools=tools, max_tokens=most, reference=own)


def _are_messages(value: Any) -> bool:
    def good(message: Any) -> bool:
        return isinstance(message, dict) and all(isinstance(message.get(name), str) for name in ("role", "content"))

    return isinstance(value, list) and bool(value) and all(map(good, value))


def _ungraded(row: Mapping[str, Any], response: str) -> float:
    raise InvalidInput("there is no grader; --grader exact, contains, or FILE.py:FUNCTION")


@cache
def _function(text: str) -> Grade:
    """The function of FILE.py:FUNCTION. Raises InvalidInput when there is none."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise InvalidInput(f"grader must be one of {', '.join(GRADERS)}, or FILE.py:FUNCTION, got {text!r}")
    spec = importlib.util.spec_from_file_location("redraft_user_grader", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InvalidInput(f"grader: there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidInput(f"grader: {path} fails: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInput(f"grader: {path} has no function {name}")
    return cast(Grade, function)
