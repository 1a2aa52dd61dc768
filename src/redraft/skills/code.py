"""Code: a sentence asks for a short Python function, and the answer is run on hidden inputs.

The function is a pipeline of list and string operations; every operation of the sentence is one statement of the
answer. The grader compares what the function returns with what the operations themselves give.
"""

from __future__ import annotations

import ast
import json
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from redraft.skills.base import Skill, Task
from redraft.skills.code_operations import OPERATIONS, Kind, Operation
from redraft.skills.sandbox import Limits, run_function
from redraft.skills.words import ANIMALS, COLORS, NOUNS, pieces

OPENINGS: Final = (
    "Write a function {f} that {d}.",
    "Write a Python function {f} that {d}.",
    "Define a function {f} that {d}.",
    "Please write {f}, a function that {d}.",
    "I need a Python function {f} that {d}.",
    "Create a function {f} which {d}.",
    "Give me a function {f} which {d}.",
    "Implement the function {f} that {d}.",
)
DOCSTRING: Final = " Add a docstring."
DOCSTRING_SHARE: Final = {1: 1.0, 2: 0.9, 3: 0.4}

FUNCTIONS: Final = (
    "f", "g", "solve", "process", "convert", "change", "work", "compute", "filter", "select", "pick", "make", "build",
    "get", "find", "run", "apply", "handle", "collect", "transform",
)  # fmt: skip
VARIABLES: Final[dict[Kind, tuple[str, ...]]] = {
    "numbers": ("numbers", "values", "data", "items"),
    "words": ("words", "names", "items", "parts"),
    "text": ("text", "line", "sentence", "message"),
}
SECOND: Final = ("k", "n", "limit", "size")
RESULT: Final[dict[Kind, str]] = {"numbers": "list", "words": "list", "text": "text"}

CASES: Final = 6
# How many pieces a prompt and an answer may have: longer tasks are drawn again.
LONGEST_PROMPT: Final = 70
LONGEST_ANSWER: Final = 100
LONGEST_RESPONSE: Final = 4000
VOCABULARY: Final = (*NOUNS, *ANIMALS, *COLORS)


@dataclass(frozen=True)
class Step:
    """One operation with its value: a literal, or `name` of the second argument. `also`: a second filter."""

    operation: Operation
    value: Any = None
    name: str | None = None
    also: tuple[Operation, Any] | None = None

    @property
    def key(self) -> str:
        extra = f"&{self.also[0].name}" if self.also else ""
        return f"{self.operation.name}{extra}{'?' if self.name else ''}"

    def phrase(self, rng: random.Random) -> str:
        said = rng.choice(self.operation.phrases).format(p=self.name or self.value)
        return f"{said} and {self.also[0].which.format(p=self.also[1])}" if self.also else said

    def code(self, variable: str) -> str:
        names = {"v": variable, "r": self.operation.result, "p": self.name or self.value}
        code = self.operation.code.format(**names)
        return f"{code[:-1]} and {self.also[0].condition.format(p=self.also[1])}]" if self.also else code

    def apply(self, value: Any, second: Any) -> Any:
        value = self.operation.apply(value, second if self.name else self.value)
        return self.also[0].apply(value, self.also[1]) if self.also else value


class Code(Skill):
    name: ClassVar[str] = "code"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "a function of one or two list or string operations, with a docstring",
        2: "a function of three operations, mostly with a docstring",
        3: "four operations, or three with a joint condition or a second argument, sometimes with a docstring",
    }

    def sample(self, rng: random.Random, level: int) -> Task:
        while True:
            kind: Kind = rng.choices(("numbers", "words", "text"), (9, 6, 5))[0]
            steps = _steps(rng, kind, level)
            if not steps:
                continue
            task = _task(rng, level, kind, steps)
            if pieces(task.prompt) > LONGEST_PROMPT or pieces(task.answer) > LONGEST_ANSWER:
                continue
            if cases := _cases(rng, kind, steps):
                return replace(task, reference={**task.reference, "cases": cases})

    def grade(self, task: Task, response: str) -> float:
        reference = task.reference
        source = program(response, reference["function"], reference["documented"])
        if source is None:
            return 0.0
        outcome = run_function(source, reference["function"], [call for call, _ in reference["cases"]], Limits())
        if outcome.values is None:
            return 0.0
        return float(_json(outcome.values) == _json([expected for _, expected in reference["cases"]]))

    def grade_many(self, pairs: Sequence[tuple[Task, str]], workers: int | None = None) -> list[float]:
        """Grades (task, response) pairs side by side: most of a grade is waiting for its process."""
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            return list(pool.map(lambda pair: self.grade(*pair), pairs))


def program(response: str, function: str, documented: bool) -> str | None:
    """The program in a response (all of it, or its first fenced block), if it defines what was asked for."""
    if len(response) > LONGEST_RESPONSE:
        return None
    source = response
    if "```" in response:
        source = response.split("```")[1].removeprefix("python")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == function]
    if not found or (documented and not ast.get_docstring(found[-1])):
        return None
    return source


def _json(value: Any) -> str:
    """Equality of the text tells True, 1 and 1.0 apart."""
    return json.dumps(value, sort_keys=True)


def _steps(rng: random.Random, kind: Kind, level: int) -> list[Step]:
    count = {1: rng.choice((1, 2)), 2: 3, 3: rng.choice((3, 4))}[level]
    twist = rng.choice(("condition", "argument")) if (level, count) == (3, 3) else None
    operations = _pipeline(rng, kind, count)
    steps = [Step(op, rng.choice(op.parameters) if op.parameters else None) for op in operations]
    if twist is None:
        return steps
    fit = _joinable if twist == "condition" else _adjustable
    places = [i for i, step in enumerate(steps) if fit(step)]
    if not places:
        return []
    i = rng.choice(places)
    if twist == "argument":
        steps[i] = Step(steps[i].operation, steps[i].value, name=rng.choice(SECOND))
        return steps
    first = steps[i].operation
    other = rng.choice([op for op in OPERATIONS[first.takes] if op.condition and op.name != first.name])
    steps[i] = Step(first, steps[i].value, also=(other, rng.choice(other.parameters) if other.parameters else None))
    return steps


def _joinable(step: Step) -> bool:
    return bool(step.operation.condition)


def _adjustable(step: Step) -> bool:
    return isinstance(step.value, int)


def _pipeline(rng: random.Random, start: Kind, count: int) -> list[Operation]:
    """Operations that follow each other: none twice, and none that its neighbour makes pointless."""
    kind = start
    chosen: list[Operation] = []
    while len(chosen) < count:
        final = len(chosen) == count - 1
        ends = final and rng.random() < 0.5
        before = chosen[-1] if chosen else None
        options = [
            op
            for op in OPERATIONS[kind]
            if (op.gives == "value") == ends
            and op not in chosen
            and (before is None or not op.group or op.group != before.group)
            and not (op.unordered and before is not None and before.group == "order")
        ]
        if not options:
            return _pipeline(rng, start, count)
        op = rng.choice(options)
        chosen.append(op)
        kind = op.gives
    return chosen


def _cases(rng: random.Random, kind: Kind, steps: list[Step]) -> list[list[Any]]:
    """[arguments, expected value] of each test; empty if they tell too little, as when a step is not needed."""
    second = next((step for step in steps if step.name), None)
    inputs = []
    for number in range(CASES):
        extra = rng.choice(second.operation.parameters) if second else None
        # One empty input, where every operation is defined too.
        inputs.append((_empty(kind) if number == CASES - 1 else _input(rng, kind, steps, extra), extra))
    expected = [_run(steps, *values) for values in inputs]
    if len({_json(value) for value in expected}) < 2:
        return []
    for i, step in enumerate(steps):
        if step.operation.takes == step.operation.gives:
            others = steps[:i] + steps[i + 1 :]
            if all(_run(others, *values) == value for values, value in zip(inputs, expected, strict=True)):
                return []
    return [
        [[value] if second is None else [value, extra], result]
        for (value, extra), result in zip(inputs, expected, strict=True)
    ]


def _run(steps: list[Step], value: Any, second: Any) -> Any:
    for step in steps:
        value = step.apply(value, second)
    return value


def _empty(kind: Kind) -> Any:
    return "" if kind == "text" else []


def _input(rng: random.Random, kind: Kind, steps: list[Step], extra: Any) -> Any:
    if kind == "numbers":
        # The numbers of the request and their neighbours, so that a wrong number or border shows.
        near = [step.value + d for step in steps for d in (-1, 0, 1) if isinstance(step.value, int)]
        near += [] if extra is None else [extra]
        values = rng.choices(range(-9, 41), k=5 if near else 8) + (rng.choices(near, k=3) if near else [])
        rng.shuffle(values)
        return [*values, values[0]]
    words = rng.choices(VOCABULARY, k=5)
    words += [rng.choice(VOCABULARY).capitalize(), words[0]]
    rng.shuffle(words)
    if kind == "words":
        return words
    return rng.choice(("", " ", "  ")) + " ".join(words[:5]) + rng.choice(("", " "))


def _task(rng: random.Random, level: int, kind: Kind, steps: list[Step]) -> Task:
    """The task in words, without its test cases."""
    opening = rng.randrange(len(OPENINGS))
    documented = rng.random() < DOCSTRING_SHARE[level]
    function, variable = rng.choice(FUNCTIONS), rng.choice(VARIABLES[kind])
    second = next((step.name for step in steps if step.name), None)
    signature = f"{function}({variable}, {second})" if second else f"{function}({variable})"

    phrases = [step.phrase(rng) for step in steps]
    lines = []
    for step in steps:
        lines.append(step.code(variable))
        variable = step.operation.result or variable
    end = steps[-1].operation.gives
    if end != "value":
        phrases.append(f"returns the {RESULT[end]}")
        lines.append(f"return {variable}")
    description = ", ".join(phrases[:-1]) + " and " + phrases[-1] if len(phrases) > 1 else phrases[0]
    if documented:
        lines.insert(0, f'"""{description[0].upper()}{description[1:]}."""')
    return Task(
        skill="code",
        level=level,
        prompt=OPENINGS[opening].format(f=signature, d=description) + (DOCSTRING if documented else ""),
        answer="\n    ".join([f"def {signature}:", *lines]),
        composition=f"{opening}:{kind}:{'+'.join(step.key for step in steps)}:{documented}",
        reference={"function": function, "documented": documented},
    )


SKILL: Final = Code()
