"""BFCL v4 (Patil et al. 2025), its single-turn sets in Python: calls of tools against the calls that are right.

The data is that of the package bfcl-eval. Its checker can't be used: importing it needs the clients of a dozen
services, at fixed versions. The rules here are its rules ("AST evaluation"): names and counts of calls, required and
unknown arguments, types, and of each argument one of the listed values; parallel calls in any order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redraft.eval.suites.package import rows
from redraft.eval.task import Item

CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
CALLED: Final = (
    "simple_python", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
NOTHING_FITS: Final = ("irrelevance", "live_irrelevance")
SOMETHING_FITS: Final = ("live_relevance",)
LONGEST: Final = 50_000
TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
ACCEPTED: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "any": (str,),
    "integer": (int,),
    "float": (float, int),
    "number": (float, int),
    "boolean": (bool,),
    "array": (list,),
    "tuple": (list,),
    "dict": (dict,),
    "object": (dict,),
}
SPACES: Final = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True)
class Bfcl:
    """A task for each set."""

    name: str = "bfcl-4"

    def items(self) -> list[Item]:
        items = []
        for task in (*CALLED, *NOTHING_FITS, *SOMETHING_FITS):
            file = f"bfcl_eval/data/{{}}BFCL_v4_{task}.json"
            answers = {row["id"]: row["ground_truth"] for row in _answers(task, file)}
            for row in rows("bfcl-eval", file.format("")):
                functions = [{**function, "name": _name(function["name"])} for function in row["function"]]
                reference = {"functions": functions, "answer": answers.get(row["id"])}
                items.append(
                    Item(
                        suite=self.name,
                        task=task,
                        messages=row["question"][0],
                        tools=[{"type": "function", "function": _as_openai(function)} for function in functions],
                        reference=reference,
                    )
                )
        return items

    def grade(self, item: Item, response: str) -> float:
        if len(response) > LONGEST:
            return 0.0
        calls = calls_in(response)
        if item.task in NOTHING_FITS:
            return float(not calls)
        if item.task in SOMETHING_FITS:
            return float(bool(calls))
        functions = {function["name"]: function["parameters"] for function in item.reference["functions"]}
        wanted = [(_name(name), values) for call in item.reference["answer"] for name, values in call.items()]
        return float(calls is not None and matches(calls, wanted, functions))


def calls_in(response: str) -> list[tuple[str, dict[str, Any]]] | None:
    """(name, arguments) of each call in an answer; None when one of them can't be read."""
    calls = []
    for text in CALL.findall(response):
        try:
            found = json.loads(text)
            name, arguments = found["name"], found.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        calls.append((_name(name), arguments))
    return calls


def matches(
    calls: Sequence[tuple[str, Mapping[str, Any]]],
    wanted: Sequence[tuple[str, Mapping[str, Any]]],
    functions: Mapping[str, Mapping[str, Any]],
) -> bool:
    """Whether each call is one of those that are wanted, and none is left; each takes the first that fits."""
    left = list(wanted)
    for name, arguments in calls:
        for place, (expected, values) in enumerate(left):
            if name == expected and name in functions and _fits(arguments, values, functions[name]):
                del left[place]
                break
        else:
            return False
    return not left


def _fits(arguments: Mapping[str, Any], allowed: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    properties = schema["properties"]
    if any(name not in arguments for name in schema.get("required", ())):
        return False
    if any(name not in properties or name not in allowed for name in arguments):
        return False
    if any(name not in arguments and "" not in values for name, values in allowed.items()):
        return False  # "" among the values: it may be left out
    return all(_right(value, allowed[name], properties[name]) for name, value in arguments.items())


def _right(value: Any, allowed: Sequence[Any], kind: Mapping[str, Any]) -> bool:
    accepted = ACCEPTED.get(kind["type"], (object,))
    typed = isinstance(value, accepted) and not (isinstance(value, bool) and bool not in accepted)
    # The answers sometimes name a variable, or a value of another type, which then is the type that is wanted.
    if not typed and not any(type(each) is type(value) for each in allowed if each != ""):
        return False
    return any(_same(value, each) for each in allowed)


def _same(value: Any, expected: Any) -> bool:
    """Texts without case, spaces and marks; objects name by name, where `expected` lists the values of each."""
    if isinstance(value, str) and isinstance(expected, str):
        return _plain(value) == _plain(expected)
    if isinstance(value, bool) != isinstance(expected, bool):
        return False
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        known = all(name in expected and _one_of(each, expected[name]) for name, each in value.items())
        return known and all(name in value or "" in _listed(values) for name, values in expected.items())
    return value == expected


def _one_of(value: Any, values: Any) -> bool:
    return any(_same(value, each) for each in _listed(values))


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list) else [values]


def _plain(text: str) -> str:
    return SPACES.sub("", text).lower().replace("'", '"')


def _name(name: str) -> str:
    """Names of functions in OpenAI's API have no dots."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _as_openai(schema: Any) -> Any:
    """The schema with the types of JSON schema."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        out = {name: _as_openai(value) for name, value in schema.items()}
        return out | ({"type": TYPES.get(kind, kind)} if isinstance(kind, str) else {})
    return [_as_openai(each) for each in schema] if isinstance(schema, list) else schema


def _answers(task: str, file: str) -> list[dict[str, Any]]:
    return rows("bfcl-eval", file.format("possible_answer/")) if task in CALLED else []
