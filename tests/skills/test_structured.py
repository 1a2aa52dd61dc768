"""The structured skill: what its grader tells apart, and that its answers do what the prompts say."""

import json
import random
import re
from itertools import pairwise
from typing import Any

import pytest

from redraft.skills.base import SPLITS, Split, Task
from redraft.skills.edits import PHRASES, Editor
from redraft.skills.records import DOMAINS, record
from redraft.skills.strict_json import MAX_CHARS, parse_strict, same_json, unfence
from redraft.skills.structured import Structured, lines_of, table_of

SKILL = Structured()


def draw(split: Split = "train", level=None, count=200, seed=0) -> list[Task]:
    rng = random.Random(seed)
    return [SKILL.generate(rng, split, level) for _ in range(count)]


def json_task(value) -> Task:
    return Task("structured", 1, "prompt", json.dumps(value), "key", {"form": "json", "value": value})


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", SKILL.levels)
def test_damaged_and_other_answers_are_wrong(level, split):
    tasks = draw(split, level)
    for task, other in pairwise(tasks):
        assert SKILL.grade(task, task.answer[:-1]) == 0.0
        assert SKILL.grade(task, task.answer + " and more") == 0.0
        if other.reference != task.reference:
            assert SKILL.grade(task, other.answer) == 0.0


@pytest.mark.parametrize(
    "response",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1.0}',
        '{"a": true}',
        '{"a": "1"}',
        '{"a": 1} {"a": 1}',
        '{"a": 1, "b": 2}',
        '```json\n{"a": 1}\n```\n```json\n{"a": 1}\n```',
        '{"a": NaN}',
        '{"a": 1}' + " " * MAX_CHARS,
    ],
)
def test_hostile_responses_are_wrong(response):
    assert SKILL.grade(json_task({"a": 1}), response) == 0.0
    for task in draw(count=30):
        assert SKILL.grade(task, response) == 0.0


def test_layout_order_and_fence_do_not_count():
    task = json_task({"a": 1, "b": [True, None]})
    for response in (
        '{"b":[true,null],"a":1}',
        '```json\n{\n  "a": 1,\n  "b": [true, null]\n}\n```',
        '```\n{"a": 1, "b": [true, null]}```',
    ):
        assert SKILL.grade(task, response) == 1.0


def test_order_counts_where_it_has_meaning():
    assert SKILL.grade(json_task([1, 2]), "[2, 1]") == 0.0
    steps = Task("structured", 2, "", "", "", {"form": "steps", "value": [{"a": 1}, {"a": 2}]})
    assert SKILL.grade(steps, '{"a": 1}\n\n{"a": 2}') == 1.0
    assert SKILL.grade(steps, '{"a": 2}\n{"a": 1}') == 0.0
    assert SKILL.grade(steps, '{"a": 2}') == 0.0
    lines = Task("structured", 1, "", "", "", {"form": "lines", "value": ["a: 1", "b: 2"]})
    assert SKILL.grade(lines, "a: 1 \nb: 2\n") == 1.0
    assert SKILL.grade(lines, "b: 2\na: 1") == 0.0


def test_answers_have_the_layout_that_the_prompt_asks_for():
    for task in draw(count=300):
        if task.reference["form"] == "json":
            indent = 2 if "indented" in task.prompt.lower() else None
            assert task.answer == json.dumps(task.reference["value"], indent=indent)


def test_every_word_of_an_answer_is_in_its_prompt():
    for task in draw(count=300):
        words = re.findall(r"[A-Za-z]+", task.answer)
        assert set(words) - set(re.findall(r"[A-Za-z]+", task.prompt)) <= {"true", "false", "null"}


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_a_key_leads_to_one_field(domain):
    keys = [key for field in (domain.subject, *domain.fields) for key in field.keys]
    assert len(keys) == len(set(keys))
    assert all(name in DOMAINS for _, name in domain.inner)


def obey(value: dict[str, Any], operation: str, words: str) -> dict[str, Any]:
    """Applies an instruction by its words alone: an independent reading of what the editor claims to have done."""
    value = {key: list(item) if isinstance(item, list) else item for key, item in value.items()}
    for phrase in PHRASES[operation]:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w+)", re.escape(phrase.replace("{where}", "")))
        if match := re.fullmatch(pattern, words):
            break
    else:
        raise AssertionError(f"{words!r} is no {operation}")
    told = match.groupdict()
    key, text = told["key"], told.get("value", "")
    item: Any = int(text) if text.isdigit() else {"true": True, "false": False}.get(text, text)
    match operation:
        case "set" | "insert":
            value[key] = item
        case "rename":
            value = {told["new"] if name == key else name: entry for name, entry in value.items()}
        case "remove":
            del value[key]
        case "append":
            value[key].append(item)
        case "prepend":
            value[key].insert(0, item)
        case "drop":
            value[key].remove(item)
        case "increase":
            value[key] += item
        case "decrease":
            value[key] -= item
    return value


@pytest.mark.parametrize("operation", PHRASES)
def test_edits_do_what_they_say(operation):
    rng = random.Random(operation)
    done = 0
    while done < 60:
        domain = rng.choice(tuple(DOMAINS.values()))
        value = record(rng, domain.choose(rng, 6))
        editor = Editor(rng, value, {"": domain})
        try:
            name, words = editor.edit((operation,))
        except ValueError:
            continue  # this record has nothing that the operation fits
        assert name == operation
        assert list(editor.value.items()) == list(obey(value, operation, words).items())
        assert editor.value != value
        done += 1


def test_plain_forms():
    assert lines_of({"a": 1, "b": {"c": True, "d": ["x", "y"]}}) == ["a: 1", "b.c: true", "b.d: x, y"]
    assert table_of([{"a": "x", "b": 1}, {"a": "y", "b": False}]) == "a,b\nx,1\ny,false"


def test_strict_json():
    assert same_json({"a": [1, None]}, {"a": [1, None]})
    assert not same_json(1, True) and not same_json(1, 1.0) and not same_json([1], [1, 1])
    assert unfence("```json\n{}\n```") == "{}" and unfence(" {} ") == "{}"
    for text in ('{"a": 1, "a": 2}', "Infinity", "[" * 4000, "1 2", "", "1" * (MAX_CHARS + 1)):
        with pytest.raises(ValueError):
            parse_strict(text)
