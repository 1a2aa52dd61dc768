"""The *tools* skill: pick the right tools for a request and write the calls.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one on a line, in the order of the request;
arguments come in the order of the signature, optional ones that the request doesn't mention are left out, and a wish
that no tool serves gets one fixed sentence after the calls.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from redraft.skills.base import Skill, Task
from redraft.skills.strict_json import MAX_CHARS, parse_strict, same_json
from redraft.skills.tool_catalog import CONCEPTS, Concept, Slot

MAX_PROMPT: Final = 70  # tokens of the tools and the request, as the small model's tokenizer cuts text
MAX_TOOLS: Final = 45

_TOKEN: Final = re.compile(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9]+")
_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

OPENINGS: Final = (("", "."), ("", "."), ("Please ", "."), ("I want to ", "."), ("Can you ", "?"), ("Now ", "."))
JOINS: Final = (", then ", " and ", ", ")

_RICH: Final = tuple(c for c in CONCEPTS if len(c.required) + len(c.optional) > 2)


@dataclass(frozen=True)
class Signature:
    """One offered tool: a name, and for each parameter its slot, key and listed values (none unless an enum)."""

    concept: Concept
    name: str
    parameters: tuple[tuple[Slot, str, tuple[str, ...]], ...]

    def schema(self) -> dict[str, Any]:
        """The OpenAI function schema."""
        properties: dict[str, Any] = {}
        for slot, key, values in self.parameters:
            kind = "boolean" if slot.flag else "integer" if slot.numbers else "string"
            properties[key] = {"type": kind, "enum": list(values)} if values else {"type": kind}
        required = [key for slot, key, _ in self.parameters if slot in self.concept.required]
        parameters = {"type": "object", "properties": properties, "required": required}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}


def render_tools(tools: Sequence[dict[str, Any]]) -> str:
    """Schemas as the chat template of the small model shows them: `name(a: integer, b?: red|blue)`, one a line."""
    lines = []
    for tool in tools:
        function = tool["function"]
        parameters = function["parameters"]
        shown = [
            f"{key}{'' if key in parameters['required'] else '?'}: {'|'.join(value.get('enum', ())) or value['type']}"
            for key, value in parameters["properties"].items()
        ]
        lines.append(f"{function['name']}({', '.join(shown)})")
    return "\n".join(lines)


def write_call(name: str, arguments: dict[str, Any]) -> str:
    """The canonical text of one call."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def lacking(concept: Concept) -> str:
    """What to say when no tool serves a wish."""
    return f"I have no tool for {concept.topic}."


def _sign(rng: random.Random, concept: Concept, extras: int, enums: bool) -> Signature:
    """Draws a signature with all required and up to `extras` optional parameters, in any order."""
    slots = [*concept.required, *rng.sample(concept.optional, min(extras, len(concept.optional)))]
    rng.shuffle(slots)
    parameters: list[tuple[Slot, str, tuple[str, ...]]] = []
    for slot in slots:
        taken = {key for _, key, _ in parameters}
        key = rng.choice([key for key in slot.keys if key not in taken])
        listed = slot.choice and enums and rng.random() < 0.7
        parameters.append((slot, key, tuple(rng.sample(slot.words[0], rng.randint(2, 3))) if listed else ()))
    return Signature(concept, rng.choice(concept.names), tuple(parameters))


def _wish(rng: random.Random, tool: Signature, leave_out: float) -> tuple[str, dict[str, Any], str]:
    """A request that one tool serves: its words, the arguments, and which slots it gives."""
    arguments: dict[str, Any] = {}
    values: dict[Slot, Any] = {}
    tails: list[str] = []
    for slot, key, listed in tool.parameters:
        if slot not in tool.concept.required and rng.random() < leave_out:
            continue
        while isinstance(value := slot.draw(rng, listed), str) and value in arguments.values():
            pass
        values[slot] = arguments[key] = value
        if slot not in tool.concept.required:
            tails.append(slot.say(rng, values[slot]))
    rng.shuffle(tails)
    request = rng.choice(tool.concept.requests).format(*(values[slot] for slot in tool.concept.required))
    given = "".join(sorted(slot.keys[0][:2] for slot in values))
    return " ".join((request, *tails)), arguments, f"{tool.concept.names[0]}:{given}"


def _join(rng: random.Random, wishes: list[str]) -> str:
    opening, end = rng.choice(OPENINGS)
    text = wishes[0]
    for at, wish in enumerate(wishes[1:], 2):
        text += (rng.choice(JOINS) if at == len(wishes) else ", ") + wish
    text = f"{opening}{text}{end}"
    return text[0].upper() + text[1:]


class Tools(Skill):
    """Function calling: signatures in, calls out."""

    name: ClassVar[str] = "tools"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "one call with 1 or 2 arguments, 2 tools offered",
        2: "one call with up to 5 arguments or two calls, 3 tools with enums and optional parameters offered",
        3: "two to four calls in a row, or a wish in it (at times the only one) that no tool serves",
    }

    def sample(self, rng: random.Random, level: int) -> Task:
        while True:
            task = self._draw(rng, level)
            shown = _size(render_tools(task.tools))
            if shown <= MAX_TOOLS and shown + _size(task.prompt) <= MAX_PROMPT:
                return task

    def _draw(self, rng: random.Random, level: int) -> Task:
        offered, served, lacks = _plan(rng, level)
        rich = level == 2 and served == 1  # one call with many arguments
        concepts = rng.sample(CONCEPTS, offered + lacks)
        if rich:
            concepts[0] = rng.choice([c for c in _RICH if c not in concepts[1:]])
        extras = [3 if rich and at == 0 else rng.randint(0, 1) for at in range(offered)]
        tools = [_sign(rng, concept, extra, level > 1) for concept, extra in zip(concepts, extras, strict=False)]
        wanted = [*tools[:served], *rng.choices(tools, k=max(0, served - offered))]
        rng.shuffle(wanted)
        wishes = [_wish(rng, tool, 0.15 if rich else 0.3) for tool in wanted]
        calls = [{"name": tool.name, "arguments": wish[1]} for tool, wish in zip(wanted, wishes, strict=True)]
        sentences = [lacking(concept) for concept in concepts[offered:]]
        said = [wish[0] for wish in wishes]
        for concept in concepts[offered:]:
            said.insert(rng.randint(0, len(said)), _wish(rng, _sign(rng, concept, 0, False), 0)[0])
        parts = [wish[2] for wish in wishes] + [f"no {concept.topic}" for concept in concepts[offered:]]
        if level == 1:
            parts.append(f"not {tools[1].concept.topic}")
        rng.shuffle(tools)
        return Task(
            self.name,
            level,
            _join(rng, said),
            "\n".join([*(write_call(**call) for call in calls), *sentences]),
            f"{level}/{'+'.join(parts)}",
            {"calls": calls, "lacking": sentences},
            tuple(tool.schema() for tool in tools),
        )

    def grade(self, task: Task, response: str) -> float:
        """Calls in order with equal arguments, and outside of them nothing but the sentences about lacking tools."""
        if len(response) > MAX_CHARS:
            return 0.0
        try:
            calls = [parse_strict(inside) for inside in _CALL.findall(response)]
        except ValueError:
            return 0.0
        rest = [line.strip() for line in _CALL.sub("\n", response).split("\n") if line.strip()]
        return float(same_json(calls, task.reference["calls"]) and rest == task.reference["lacking"])


def _plan(rng: random.Random, level: int) -> tuple[int, int, int]:
    """How many tools are offered, how many calls are right and how many wishes no tool serves."""
    if level == 1:
        return 2, 1, 0
    if level == 2:
        return 3, rng.choice((1, 2, 2, 2, 2)), 0
    if rng.random() < 0.05:
        return 2, 0, 1
    return rng.choice(((3, 3, 0), (3, 4, 0), (2, 3, 0), (2, 4, 0), (2, 4, 0), (2, 4, 0), (2, 3, 1), (2, 2, 1)))


def _size(text: str) -> int:
    return len(_TOKEN.findall(text))
