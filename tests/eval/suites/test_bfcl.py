from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from redraft.eval.suites.bfcl import Bfcl, calls_in, matches
from redraft.eval.task import Item, graded

SUITE = Bfcl()
ITEMS = SUITE.items()
SCHEMA = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "float"},
        "wet": {"type": "boolean"},
        "names": {"type": "array"},
        "place": {"type": "dict"},
    },
    "required": ["city"],
}
FUNCTIONS = {"weather": SCHEMA, "other": SCHEMA}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def first(task: str) -> Item:
    return next(item for item in ITEMS if item.task == task)


def test_items() -> None:
    assert Counter(item.task for item in ITEMS)["simple_python"] == 400 and len(ITEMS) == 3491
    item = first("simple_python")
    assert item.tools[0]["function"]["parameters"]["type"] == "object"
    assert item.reference["answer"] == [
        {"calculate_triangle_area": {"base": [10], "height": [5], "unit": ["units", ""]}}
    ]


def test_an_item_of_each_kind() -> None:
    item = first("simple_python")
    right = call("calculate_triangle_area", base=10, height=5)
    assert graded(SUITE, item, right) == (1.0, "")
    assert graded(SUITE, item, "Of course. " + right) == (1.0, "")
    for wrong in (
        call("calculate_triangle_area", base=10, height=6),
        call("calculate_triangle_area", base=10),
        call("calculate_triangle_area", base="10", height=5),
        call("calculate_triangle_area", base=10, height=5, colour="red"),
        call("area", base=10, height=5),
        right + right,
        "The area is 25.",
        "",
        "<tool_call>{</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 20_000 + "</tool_call>",
        right + "x" * 10**6,
    ):
        assert graded(SUITE, item, wrong) == (0.0, "")
    assert graded(SUITE, first("irrelevance"), "I have no tool for that.") == (1.0, "")
    assert graded(SUITE, first("irrelevance"), right) == (0.0, "")
    assert graded(SUITE, first("live_relevance"), right) == (1.0, "")
    assert graded(SUITE, first("live_relevance"), "") == (0.0, "")


def test_parallel_calls_come_in_any_order() -> None:
    wanted = [("weather", {"city": ["Rome"]}), ("weather", {"city": ["Oslo"]}), ("other", {"city": ["Bonn"]})]
    calls = [("other", {"city": "Bonn"}), ("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]
    assert matches(calls, wanted, FUNCTIONS)
    assert not matches(calls[:2], wanted, FUNCTIONS)
    assert not matches([*calls, calls[0]], wanted, FUNCTIONS)
    assert not matches([calls[0], calls[1], calls[1]], wanted, FUNCTIONS)


@pytest.mark.parametrize(
    ("given", "allowed", "good"),
    [
        ({"city": "new york"}, {"city": ["New York", "NYC"]}, True),
        ({"city": "New-York."}, {"city": ["New York"]}, True),
        ({"city": "York"}, {"city": ["New York"]}, False),
        ({"city": "x"}, {"city": ["x"], "days": [3, ""]}, True),
        ({"city": "x"}, {"city": ["x"], "days": [3]}, False),
        ({"city": "x", "days": 3}, {"city": ["x"], "days": [3, ""]}, True),
        ({"city": "x", "days": 3.0}, {"city": ["x"], "days": [3]}, False),
        ({"city": "x", "share": 3}, {"city": ["x"], "share": [3.0]}, True),
        ({"city": "x", "days": True}, {"city": ["x"], "days": [1]}, False),
        ({"city": "x", "wet": True}, {"city": ["x"], "wet": [True]}, True),
        ({"city": "x", "wet": 1}, {"city": ["x"], "wet": [True]}, False),
        ({"city": "x", "names": ["A b", "c"]}, {"city": ["x"], "names": [["ab", "C"]]}, True),
        ({"city": "x", "names": ["c", "a"]}, {"city": ["x"], "names": [["a", "c"]]}, False),
        ({"city": "x", "place": {"zip": 1}}, {"city": ["x"], "place": [{"zip": [1], "street": [""]}]}, True),
        ({"city": "x", "place": {"zip": 2}}, {"city": ["x"], "place": [{"zip": [1]}]}, False),
        ({"city": "x", "place": {"zap": 1}}, {"city": ["x"], "place": [{"zip": [1]}]}, False),
        ({"city": None}, {"city": ["x"]}, False),
    ],
)
def test_arguments(given: dict[str, Any], allowed: dict[str, Any], good: bool) -> None:
    assert matches([("weather", given)], [("weather", allowed)], FUNCTIONS) == good


def test_calls_are_read() -> None:
    assert calls_in("none") == []
    assert calls_in(call("a.b", x=1) + "and" + call("c")) == [("a_b", {"x": 1}), ("c", {})]
    for broken in ('{"name": 1}', '{"name": "a", "arguments": 3}', "3", "{"):
        assert calls_in(f"<tool_call>{broken}</tool_call>") is None
