"""Strict reading and comparison of JSON that a model wrote, shared by the graders."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_CHARS = 4096  # a right answer has a few hundred characters; anything longer is refused unread

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)


def unfence(text: str) -> str:
    """The inside of a ```json block if the whole text is one, else the text; outer white space goes."""
    text = text.strip()
    block = _FENCE.fullmatch(text)
    return block.group(1).strip() if block and "```" not in block.group(1) else text


def parse_strict(text: str) -> Any:
    """Parses one JSON value; raises ValueError on repeated keys, NaN, trailing text, depth or size over the cap."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"JSON text must have at most {MAX_CHARS} characters, got {len(text)}")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values with exact types: 1, 1.0 and true differ; the order of keys doesn't matter."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return left == right


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("JSON object repeats a key")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
