"""The tools skill: what its grader tells apart, and that its calls fit the schemas and the requests."""

import random
from itertools import pairwise

import pytest

from redraft.skills.base import SPLITS, Split, Task
from redraft.skills.strict_json import MAX_CHARS
from redraft.skills.tool_catalog import CONCEPTS
from redraft.skills.tools import Tools, render_tools, write_call
from redraft.skills.words import pieces

SKILL = Tools()
KINDS = {"string": str, "integer": int, "boolean": bool}


def draw(split: Split = "train", level=None, count=200, seed=0) -> list[Task]:
    rng = random.Random(seed)
    return [SKILL.generate(rng, split, level) for _ in range(count)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", SKILL.levels)
def test_damaged_and_other_answers_are_wrong(level, split):
    tasks = draw(split, level)
    for task, other in pairwise(tasks):
        assert SKILL.grade(task, task.answer[:-1]) == 0.0
        assert SKILL.grade(task, task.answer + "\nDone.") == 0.0
        assert SKILL.grade(task, task.answer + "\n" + write_call("set_alarm", {"hour": 7})) == 0.0
        if other.reference != task.reference:
            assert SKILL.grade(task, other.answer) == 0.0


@pytest.mark.parametrize(
    "response",
    [
        "<tool_call></tool_call>",
        "<tool_call>{}</tool_call>",
        '{"name": "call", "arguments": {"hour": 7}}',
        '<tool_call>{"name": "call", "arguments": {"hour": "7"}}</tool_call>',
        '<tool_call>{"name": "call", "arguments": {"hour": 7.0}}</tool_call>',
        '<tool_call>{"name": "call", "arguments": {"hour": 7, "hour": 7}}</tool_call>',
        '<tool_call>{"name": "call", "arguments": {"hour": 7, "day": "Monday"}}</tool_call>',
        '<tool_call>{"name": "call", "arguments": {"hour": 7}}',
        '<tool_call>{"name": "call", "arguments": {"hour": 7}} x</tool_call>',
        'Sure: <tool_call>{"name": "call", "arguments": {"hour": 7}}</tool_call>',
        '<tool_call>{"name": "call", "arguments": {"hour": 7}}</tool_call>' + " " * MAX_CHARS,
    ],
)
def test_hostile_responses_are_wrong(response):
    reference = {"calls": [{"name": "call", "arguments": {"hour": 7}}], "lacking": []}
    assert SKILL.grade(Task("tools", 1, "", "", "", reference), response) == 0.0
    for task in draw(count=30):
        assert SKILL.grade(task, response) == 0.0


def test_layout_and_key_order_do_not_count_but_call_order_does():
    calls = [{"name": "a", "arguments": {"x": 1, "y": "z"}}, {"name": "b", "arguments": {}}]
    task = Task("tools", 3, "", "", "", {"calls": calls, "lacking": ["I have no tool for music."]})
    first, second = '<tool_call>\n{"arguments":{"y":"z","x":1},"name":"a"}\n</tool_call>', write_call("b", {})
    assert SKILL.grade(task, f"{first}{second} I have no tool for music.") == 1.0
    assert SKILL.grade(task, f"{second}\n{first}\nI have no tool for music.") == 0.0
    assert SKILL.grade(task, f"{first}\n{second}") == 0.0
    assert SKILL.grade(task, f"{first}\n{second}\nI have no tool for alarms.") == 0.0


@pytest.mark.parametrize("level", SKILL.levels)
def test_few_short_tools_are_offered(level):
    for task in draw("train", level, 250):
        assert 2 <= len(task.tools) <= 4
        assert pieces(render_tools(task.tools)) <= 45


def test_calls_fit_the_schemas():
    for task in draw(count=300):
        functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
        assert len(functions) == len(task.tools)
        for call in task.reference["calls"]:
            schema = functions[call["name"]]
            arguments = call["arguments"]
            assert set(schema["required"]) <= arguments.keys() <= schema["properties"].keys()
            assert list(arguments) == [key for key in schema["properties"] if key in arguments]
            for key, value in arguments.items():
                kind = schema["properties"][key]
                assert type(value) is KINDS[kind["type"]]
                assert value in kind.get("enum", [value])


def test_values_are_in_the_request():
    for task in draw(count=300):
        request = task.prompt[0].lower() + task.prompt[1:]
        for call in task.reference["calls"]:
            for value in call["arguments"].values():
                assert isinstance(value, bool) or str(value) in request


def test_lacking_tools_are_not_offered():
    seen = 0
    for task in draw(level=3, count=300):
        for concept in CONCEPTS:
            if f"I have no tool for {concept.topic}." in task.reference["lacking"]:
                seen += 1
                assert not {tool["function"]["name"] for tool in task.tools} & set(concept.names)
    assert seen > 30


def test_concepts_do_not_share_names():
    names = [name for concept in CONCEPTS for name in concept.names]
    topics = [concept.topic for concept in CONCEPTS]
    assert len(names) == len(set(names)) and len(topics) == len(set(topics))


def test_rendering():
    parameters = {
        "type": "object",
        "properties": {"hour": {"type": "integer"}, "color": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["hour"],
    }
    tool = {"type": "function", "function": {"name": "set_alarm", "parameters": parameters}}
    assert render_tools([tool, tool]) == "\n".join(["set_alarm(hour: integer, color?: red|blue)"] * 2)
