"""The *structured* skill: text to JSON, edits of JSON, and JSON to and from other forms.

Prompts name the keys, so that one right answer follows from the prompt alone. The canonical answer is what
`json.dumps` writes, or its `indent=2` form where the prompt says "indented". The grader reads JSON strictly and
compares values with their exact types; the order of keys and the layout don't count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from redraft.skills.base import Skill, Task
from redraft.skills.edits import Editor, in_words
from redraft.skills.nests import NESTS, Nest, draw_nest
from redraft.skills.records import DOMAINS, Domain, record
from redraft.skills.strict_json import MAX_CHARS, parse_strict, same_json, unfence

Draft = tuple[str, str, dict[str, Any], str]  # prompt, answer, reference, composition

MAX_PROMPT: Final = 70  # tokens, as the small model's tokenizer cuts text
MAX_ANSWER: Final = 100

_TOKEN: Final = re.compile(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9]+")

LAYOUTS: Final = ("JSON", "indented JSON")

EXTRACT: Final = (
    "Write {layout} with {keys}: {text}",
    "{text} Give {layout} with {keys}.",
    "Turn this into {layout}. Keys: {keys}. Text: {text}",
    "Read: {text} Answer in {layout} with {keys}.",
    "Text: {text} Keys: {keys}. Format: {layout}.",
    "Find {keys} and write {layout}: {text}",
    "{layout}, keys {keys}: {text}",
)
MISSING: Final = (" Use null if not said.", " Missing is null.")
EDIT: Final = (
    "In {value} {edits}. Give the new {layout}.",
    "Take {value} and {edits}. Write {layout}.",
    "Object: {value} Now {edits}. Answer in {layout}.",
    "{value} Please {edits}. Format: {layout}.",
)
STEPS: Final = (
    "Edit {value} step by step: {edits}.",
    "In steps, {value}: {edits}.",
    "{value} Now {edits}. Show each step.",
    "Change {value} in steps: {edits}.",
)
TO_LINES: Final = (
    "Write {value} as lines of key and value.",
    "List {value} line by line.",
    "Turn {value} into plain lines.",
    "{value} One line for each value.",
)
FROM_LINES: Final = (
    "Turn these lines into {layout}:\n{text}",
    "Write this as {layout}:\n{text}",
    "{text}\nGive {layout}.",
    "Lines:\n{text}\nFormat: {layout}",
)
TO_TABLE: Final = ("Write {value} as CSV.", "Turn {value} into a table in CSV.", "{value} Give CSV with a header.")
FROM_TABLE: Final = (
    "Turn this table into {layout}:\n{text}",
    "Write {layout} objects:\n{text}",
    "{text}\nGive the rows as {layout}.",
    "One {layout} object for each row:\n{text}",
)
COLUMNS: Final = ("Give {layout} lists of the columns:\n{text}", "{text}\nWrite the columns as {layout} lists.")
GROUPS: Final = (
    "Group by {key} in {layout}:\n{text}",
    "{text}\nGive {layout}, rows grouped by {key}.",
    "Write {layout} with the rows of each {key}:\n{text}",
)
INDEX: Final = (
    "Turn this into {layout} with {key} as key:\n{text}",
    "{text}\nGive {layout}, one object for each {key}.",
    "Write {layout}, key {key}:\n{text}",
)
NEST: Final = (
    "Write {layout} with {shape}: {text}",
    "{text} Give {layout} with {shape}.",
    "Find {shape} and write {layout}: {text}",
    "{layout}, {shape}: {text}",
)


def dumps(value: Any, layout: str) -> str:
    """The canonical text of a JSON value in a layout."""
    return json.dumps(value, indent=2 if layout == "indented JSON" else None)


def lines_of(value: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: value` lines; nested keys are joined with a dot, lists with commas."""
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += lines_of(item, f"{prefix}{key}.")
        else:
            text = ", ".join(item) if isinstance(item, list) else in_words(item)
            lines.append(f"{prefix}{key}: {text}")
    return lines


def table_of(rows: list[dict[str, Any]]) -> str:
    """CSV with a header line."""
    return "\n".join(",".join(cells) for cells in (rows[0], *(map(in_words, row.values()) for row in rows)))


def _json_draft(kind: str, phrases: tuple[str, ...], rng: Random, value: Any, detail: str, /, **slots: Any) -> Draft:
    """A draft whose answer is one JSON value in a drawn layout."""
    layout, phrase = rng.choice(LAYOUTS), rng.randrange(len(phrases))
    prompt = phrases[phrase].format(layout=layout, **slots)
    return prompt, dumps(value, layout), {"form": "json", "value": value}, f"{kind}/{phrase}/{layout}/{detail}"


def _lines_draft(kind: str, phrases: tuple[str, ...], rng: Random, text: str, detail: str, /, **slots: Any) -> Draft:
    """A draft whose answer is plain lines."""
    phrase = rng.randrange(len(phrases))
    prompt = phrases[phrase].format(**slots)
    return prompt, text, {"form": "lines", "value": text.split("\n")}, f"{kind}/{phrase}/{detail}"


def _domain(rng: Random) -> Domain:
    return rng.choice(tuple(DOMAINS.values()))


def _shape(domain: Domain, value: dict[str, Any]) -> str:
    """The domain and fields of an object, whatever synonyms its keys are."""
    return f"{domain.name}:{' '.join(sorted(domain.field_of[key].name for key in value))}"


def _tell(rng: Random, domain: Domain, value: dict[str, Any]) -> str:
    """Sentences that state a record whose first entry is the subject."""
    (_, subject), *others = value.items()
    subject = domain.subject.clauses[rng.randrange(2) % len(domain.subject.clauses)].format(subject)
    rng.shuffle(others)
    clauses = [domain.field_of[key].clause(rng, item) for key, item in others]
    size = rng.choice((1, 2, 2, 3))
    parts = [clauses[at : at + size] for at in range(0, len(clauses), size)]
    said = [part[0] if len(part) == 1 else f"{', '.join(part[:-1])} and {part[-1]}" for part in parts]
    return " ".join(f"{subject} {part}." for part in said)


def _extract(rng: Random, count: int, *, scalar: bool, missing: bool) -> Draft:
    domain = _domain(rng)
    value = record(rng, domain.choose(rng, count, scalar=scalar))
    text = _tell(rng, domain, value)
    if missing:
        spare = [field for field in domain.fields if not field.many and not value.keys() & set(field.keys)]
        value[rng.choice(rng.choice(spare).keys)] = None
    keys = list(value)
    rng.shuffle(keys)
    value = {key: value[key] for key in keys}
    prompt, answer, reference, composition = _json_draft(
        "extract", EXTRACT, rng, value, _shape(domain, value), text=text, keys=", ".join(keys)
    )
    note = rng.choice(MISSING) if missing else ""
    return prompt + note, answer, reference, f"{composition}/{missing}"


def _object(rng: Random, count: int, *, nested: bool, scalar: bool = False) -> tuple[dict[str, Any], dict[str, Domain]]:
    """A record and the domains of its parts; a nested one has a small record of another domain inside."""
    domain = _domain(rng)
    if not nested:
        return record(rng, domain.choose(rng, count, scalar=scalar)), {"": domain}
    key, name = rng.choice(domain.inner)
    inner = DOMAINS[name]
    value = record(rng, domain.choose(rng, count, scalar=scalar, without=key))
    entries = list(value.items())
    entries.insert(rng.randint(1, len(entries)), (key, record(rng, inner.choose(rng, 3, scalar=True))))
    return dict(entries), {"": domain, key: inner}


def _edit(rng: Random, count: int, edits: int, *, nested: bool = False, steps: bool = False) -> Draft:
    value, domains = _object(rng, count, nested=nested, scalar=nested)
    editor = Editor(rng, value, domains)
    operations, told, states = [], [], []
    for _ in range(edits):
        operation, words = editor.edit()
        operations.append(operation)
        told.append(words)
        states.append(json.loads(json.dumps(editor.value)))
    slots = {"value": json.dumps(value), "edits": ", ".join(told)}
    detail = f"{'.'.join(operations)}/{domains[''].name}"
    if not steps:
        return _json_draft("edit", EDIT, rng, states[-1], detail, **slots)
    phrase = rng.randrange(len(STEPS))
    answer = "\n".join(map(json.dumps, states))
    return STEPS[phrase].format(**slots), answer, {"form": "steps", "value": states}, f"steps/{phrase}/{detail}"


def _rows(rng: Random, rows: int, columns: int) -> tuple[Domain, list[dict[str, Any]]]:
    """Rows of one table, all cells of the first column different."""
    domain = _domain(rng)
    fields = domain.choose(rng, columns, scalar=True)
    keys = [rng.choice(field.keys) for field in fields]
    table: list[dict[str, Any]] = []
    while len(table) < rows:
        row = {key: field.draw(rng) for key, field in zip(keys, fields, strict=True)}
        if all(row[keys[0]] != other[keys[0]] for other in table):
            table.append(row)
    return domain, table


def _to_lines(rng: Random, count: int, *, nested: bool = False) -> Draft:
    value, domains = _object(rng, count, nested=nested)
    text = "\n".join(lines_of(value))
    detail = _shape(domains[""], {key: item for key, item in value.items() if not isinstance(item, dict)})
    return _lines_draft("lines", TO_LINES, rng, text, f"{detail}/{nested}", value=json.dumps(value))


def _from_lines(rng: Random, count: int, *, nested: bool = False) -> Draft:
    value, domains = _object(rng, count, nested=nested)
    detail = _shape(domains[""], {key: item for key, item in value.items() if not isinstance(item, dict)})
    return _json_draft("parse", FROM_LINES, rng, value, f"{detail}/{nested}", text="\n".join(lines_of(value)))


def _to_table(rng: Random) -> Draft:
    domain, rows = _rows(rng, 2, 3)
    return _lines_draft("csv", TO_TABLE, rng, table_of(rows), _shape(domain, rows[0]), value=json.dumps(rows))


def _from_table(rng: Random, rows: int, columns: int) -> Draft:
    domain, table = _rows(rng, rows, columns)
    return _json_draft("table", FROM_TABLE, rng, table, f"{_shape(domain, table[0])}/{rows}", text=table_of(table))


def _columns(rng: Random) -> Draft:
    rows = rng.randint(3, 4)
    domain, table = _rows(rng, rows, 4)
    value = {key: [row[key] for row in table] for key in table[0]}
    return _json_draft("columns", COLUMNS, rng, value, f"{_shape(domain, table[0])}/{rows}", text=table_of(table))


def _index(rng: Random) -> Draft:
    domain, table = _rows(rng, 5, 4)
    key = next(iter(table[0]))
    value = {str(row[key]): {name: row[name] for name in row if name != key} for row in table}
    return _json_draft("index", INDEX, rng, value, _shape(domain, table[0]), key=key, text=table_of(table))


def _groups(rng: Random) -> Draft:
    domain, table = _rows(rng, 5, 4)
    key = rng.choice([name for name in list(table[0])[1:] if isinstance(table[0][name], str)] or [list(table[0])[1]])
    first, second = table[0][key], table[1][key]
    if first == second:
        return _groups(rng)
    for row in table[2:]:
        row[key] = rng.choice((first, second))
    value: dict[str, list[dict[str, Any]]] = {}
    for row in table:
        value.setdefault(in_words(row[key]), []).append({name: row[name] for name in row if name != key})
    return _json_draft("groups", GROUPS, rng, value, _shape(domain, table[0]), key=key, text=table_of(table))


def _fields(nest: Nest, value: dict[str, Any]) -> str:
    """The parts of a nest in the order that its objects have them, whatever synonyms their keys are."""
    (_, head), (_, rows) = value.items()
    return " ".join(part.keys[0] for key in (*head, *rows[0]) for part in (*nest.head, *nest.row) if key in part.keys)


def _nest(rng: Random, rows: int) -> Draft:
    nest = rng.choice(NESTS)
    value, shape, text = draw_nest(nest, rng, rows)
    detail = f"{nest.name}/{rows}/{_fields(nest, value)}"
    return _json_draft("nest", NEST, rng, value, detail, shape=shape, text=text)


_KINDS: Final[dict[int, tuple[Callable[[Random], Draft], ...]]] = {
    1: (
        lambda rng: _extract(rng, 4, scalar=True, missing=False),
        lambda rng: _extract(rng, 5, scalar=True, missing=False),
        lambda rng: _edit(rng, 5, 1),
        lambda rng: _edit(rng, 6, 1),
        lambda rng: _to_lines(rng, 6),
        lambda rng: _from_lines(rng, 6),
        lambda rng: _from_table(rng, 2, 3),
        _to_table,
    ),
    2: (
        lambda rng: _extract(rng, 5, scalar=False, missing=False),
        lambda rng: _extract(rng, 4, scalar=False, missing=True),
        lambda rng: _nest(rng, 2),
        lambda rng: _nest(rng, 2),
        lambda rng: _edit(rng, 6, 2),
        lambda rng: _edit(rng, 5, 2, steps=True),
        lambda rng: _edit(rng, 5, 2, steps=True),
        lambda rng: _from_table(rng, 3, 4),
        lambda rng: _from_table(rng, 4, 3),
        _columns,
        lambda rng: _from_lines(rng, 6, nested=True),
        lambda rng: _to_lines(rng, 6, nested=True),
    ),
    3: (
        lambda rng: _nest(rng, 4),
        lambda rng: _nest(rng, 4),
        lambda rng: _from_table(rng, 5, 4),
        lambda rng: _from_table(rng, 4, 5),
        _index,
        _groups,
        lambda rng: _edit(rng, 5, 3, steps=True),
        lambda rng: _edit(rng, 3, 3, nested=True, steps=True),
    ),
}


class Structured(Skill):
    """Text, tables and JSON turned into each other, and edits of JSON objects."""

    name: ClassVar[str] = "structured"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "a flat object of 4 to 6 fields: from a sentence, from or to lines or CSV, or with one edit",
        2: "lists, nulls, one nested object, a table of 9 to 12 cells, or two edits (mostly showing each step)",
        3: "objects in lists and groups with up to 20 values, or three edits shown step by step on nested objects",
    }

    def sample(self, rng: Random, level: int) -> Task:
        draw = rng.choice(_KINDS[level])
        while True:
            prompt, answer, reference, composition = draw(rng)
            if len(_TOKEN.findall(prompt)) <= MAX_PROMPT and len(_TOKEN.findall(answer)) <= MAX_ANSWER:
                break
        return Task(self.name, level, prompt, answer, f"{level}/{composition}", reference)

    def grade(self, task: Task, response: str) -> float:
        """Strict JSON equal to the reference; for steps, one such value a line; for plain forms, the exact lines."""
        if len(response) > MAX_CHARS:
            return 0.0
        text, expected = unfence(response), task.reference["value"]
        try:
            match task.reference["form"]:
                case "json":
                    return float(same_json(parse_strict(text), expected))
                case "steps":
                    lines = [line for line in text.split("\n") if line.strip()]
                    return float(same_json([parse_strict(line) for line in lines], expected))
        except ValueError:
            return 0.0
        return float([line.rstrip() for line in text.split("\n")] == expected)
