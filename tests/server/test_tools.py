"""Calls in a text, however it is cut, and values against schemas."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.server.errors import ApiError
from redraft.server.schema import SchemaError, fits, require_schema
from redraft.server.tools import Call, Splitter, Toolset

DEEP = json.loads("[" * 60 + "1" + "]" * 60)


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | ({"parameters": parameters} if parameters else {})}


SET = Toolset.of([tool("f", {"type": "object", "required": ["x"]}), tool("g")], "tools <tool_call>")


def split(pieces: list[str], toolset: Toolset | None = SET) -> list[str | tuple[str, str]]:
    """Contents joined, and calls without their random ids, in order."""
    splitter = Splitter(toolset)
    parts = [part for piece in pieces for part in splitter.push(piece)] + list(splitter.finish())
    found: list[str | tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Call):
            found.append((part.name, part.arguments))
        elif found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


def test_calls_and_texts_in_order() -> None:
    text = 'a <tool_call>{"name": "g"}</tool_call>\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> b'
    assert split([text]) == ["a", ("g", "{}"), ("f", '{"x": 1}'), " b"]
    assert split(['<tool_call>[{"name": "g"}, {"name": "g", "parameters": {}}]</tool_call>']) == [("g", "{}")] * 2
    assert split([text], None) == [text]


@pytest.mark.parametrize(
    "body",
    ['{"name": "f", "arguments": {}}', '{"name": "h"}', "{", "[]", '"g"', '{"name": "g", "arguments": "x"}', "[" * 9999]
)  # fmt: skip
def test_what_fits_no_tool_is_text(body: str) -> None:
    text = f"a  <tool_call>{body}</tool_call> b"
    assert split([text]) == [text]


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool",
        '{"name": "g"}',
        '{"name": "f", "arguments": {"x": 1}}',
        " ",
        "\n",
        "a",
        "<",
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.data())
def test_it_does_not_matter_how_a_text_is_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces) == split([text])
    if not any(isinstance(part, tuple) for part in split([text])):
        assert "".join(map(str, split([text]))) == text


def test_an_open_notation_goes_on_to_the_end() -> None:
    granite = Toolset.of([tool("g")], "tools <|tool_call|>")
    assert split(["ok <|tool_", 'call|>[{"name": "g"}]'], granite) == ["ok", ("g", "{}")]
    assert split(["<|tool_call|>[oops"], granite) == ["<|tool_call|>[oops"]


@pytest.mark.parametrize("template", [None, "", "no calls {{ tools }}", "<tool_call> but nobody is offered anything"])
def test_a_template_that_writes_no_calls_refuses_tools(template: str | None) -> None:
    with pytest.raises(ApiError, match="tools is not supported"):
        Toolset.of([tool("f")], template)


GOOD: list[tuple[Any, Any]] = [
    ({}, 1),
    (True, None),
    ({"type": "integer"}, 3.0),
    ({"type": ["string", "null"]}, None),
    ({"enum": [1, None, {"a": []}]}, {"a": []}),
    ({"const": False}, False),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": "", "b": 1}),
    ({"properties": {"a": {}}, "additionalProperties": {"type": "number"}}, {"a": "x", "b": 2.5}),
    ({"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"minimum": 2}}}, [2, 3, "x"]),
    ({"anyOf": [{"type": "string"}, {"type": "number"}]}, 3),
    ({"oneOf": [{"minimum": 2}, {"maximum": 2}]}, 3),
    ({"allOf": [{"minimum": 2}, {"maximum": 4}]}, 3),
    ({"not": {"type": "string"}}, 3),
    ({"minLength": 1, "maxItems": 1, "minProperties": 1}, "x"),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, 1.5),
    ({"properties": {"next": {"$ref": "#"}}, "required": []}, {"next": {"next": {}}}),
    ({"type": "string", "format": "date", "pattern": "^x"}, "no date"),
]
BAD: list[tuple[Any, Any]] = [
    (False, 1),
    ({"type": "integer"}, True),
    ({"type": "integer"}, 3.5),
    ({"type": "number"}, "3"),
    ({"type": "object"}, []),
    ({"enum": [1]}, True),
    ({"const": 0}, False),
    ({"required": ["a"]}, {}),
    ({"properties": {"a": {"type": "string"}}}, {"a": 1}),
    ({"properties": {}, "additionalProperties": False}, {"a": 1}),
    ({"items": {"type": "string"}}, ["a", 1]),
    ({"anyOf": [{"type": "string"}]}, 3),
    ({"oneOf": [{"minimum": 2}, {"maximum": 4}]}, 3),
    ({"allOf": [{"minimum": 2}, {"minimum": 4}]}, 3),
    ({"not": {}}, 3),
    ({"maxLength": 1}, "xy"),
    ({"minItems": 1}, []),
    ({"maximum": 2}, 3),
    ({"exclusiveMaximum": 2}, 2),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "string"}}}, 1),
]


@pytest.mark.parametrize(("schema", "value"), GOOD)
def test_values_that_fit(schema: Any, value: Any) -> None:
    require_schema(schema)
    assert fits(value, schema)


@pytest.mark.parametrize(("schema", "value"), BAD)
def test_values_that_do_not_fit(schema: Any, value: Any) -> None:
    require_schema(schema)
    assert not fits(value, schema)


def deep(levels: int) -> Any:
    return json.loads('{"not": ' * levels + "{}" + "}" * levels)


@pytest.mark.parametrize(
    "schema",
    [
        3, {"type": "text"}, {"type": 3}, {"properties": []}, {"properties": {"a": 3}}, {"required": "a"},
        {"required": [1]}, {"enum": {}}, {"items": []}, {"anyOf": {}}, {"minimum": "1"}, {"maxLength": True},
        {"$ref": "http://127.0.0.1/x"}, {"$ref": "#/nowhere"}, {"$ref": 3}, {"$defs": {"a": 1}}, deep(70),
        {"default": deep(70)}, {"enum": list(range(30_000))},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        require_schema(schema)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, 1),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {}},
          "$ref": "#/$defs/d0"}, 1),
        ({"items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, False]}, "maxItems": 1}, DEEP),
    ],
)  # fmt: skip
def test_schemas_that_would_go_on_for_ever_are_bounded(schema: Any, value: Any) -> None:
    began = time.process_time()
    require_schema(schema)
    with suppress(SchemaError):
        fits(value, schema)
    assert time.process_time() - began < 2
