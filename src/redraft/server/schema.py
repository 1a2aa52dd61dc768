"""Whether a value fits a JSON schema, in bounded time: schemas come from strangers, and so may values.

Looked at are the keywords below; others (`format`, `pattern`, …) are notes to the reader. A reference leads to another
place of the same schema and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_STEPS = 20_000
MAX_DEPTH = 64
NESTED = (list, dict)
SIZES = (("minLength", "maxLength", str), ("minItems", "maxItems", list), ("minProperties", "maxProperties", dict))
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NUMBERS = (*(name for low, high, _ in SIZES for name in (low, high)), *LIMITS)
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


class SchemaError(ValueError):
    """The schema isn't one, or takes too long to check by."""


def fits(value: Any, schema: Any) -> bool:
    """Raises SchemaError when that can't be said in bounded time."""
    return _Check(schema).fits(value, schema, 0)


def require_schema(schema: Any) -> None:
    """Raises SchemaError for what isn't a schema, wherever in it."""
    _require_flat(schema)
    _Check(schema).read(schema)


class _Check:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MAX_STEPS

    def read(self, schema: Any) -> None:
        """Looks at every keyword once."""
        self._count(1)
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            raise SchemaError(f"a schema must be an object or a boolean, got a {type(schema).__name__}")
        if "$ref" in schema:
            self._at(schema["$ref"])
        if "type" in schema:
            _has_type(None, schema["type"])
        self._list(schema, "enum")
        for name in self._list(schema, "required"):
            if not isinstance(name, str):
                raise SchemaError(f"required must hold names, got {str(name)[:40]!r}")
        for name in NUMBERS:
            _number(schema, name, 0)
        for name in ("properties", "$defs", "definitions"):
            for inner in _object(schema, name).values():
                self.read(inner)
        for name in ("allOf", "anyOf", "oneOf"):
            for inner in self._list(schema, name):
                self.read(inner)
        for name in ("items", "additionalProperties", "not"):
            if name in schema:
                self.read(schema[name])

    def fits(self, value: Any, schema: Any, depth: int) -> bool:
        self._count(1)
        if depth > MAX_DEPTH:
            raise SchemaError(f"the schema leads more than {MAX_DEPTH} levels deep")
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema and not self.fits(value, self._at(schema["$ref"]), depth + 1):
            return False
        if "type" in schema and not _has_type(value, schema["type"]):
            return False
        if "enum" in schema and not any(_same(value, good) for good in self._list(schema, "enum")):
            return False
        if "const" in schema and not _same(value, schema["const"]):
            return False
        return self._combined(value, schema, depth) and _in_range(value, schema) and self._inside(value, schema, depth)

    def _combined(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        for name, enough in (("allOf", all), ("anyOf", any)):
            if name in schema and not enough(self.fits(value, one, depth + 1) for one in self._list(schema, name)):
                return False
        if "oneOf" in schema and sum(self.fits(value, one, depth + 1) for one in self._list(schema, "oneOf")) != 1:
            return False
        return "not" not in schema or not self.fits(value, schema["not"], depth + 1)

    def _inside(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        if isinstance(value, list) and "items" in schema:
            return all(self.fits(item, schema["items"], depth + 1) for item in value)
        if not isinstance(value, dict):
            return True
        properties = _object(schema, "properties")
        others = schema.get("additionalProperties", True)
        return all(name in value for name in self._list(schema, "required")) and all(
            self.fits(item, properties.get(name, others), depth + 1) for name, item in value.items()
        )

    def _at(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(f"$ref must point into the same schema (#/…), got {str(reference)[:60]!r}")
        place = self._root
        for part in reference[2:].split("/") if len(reference) > 1 else ():
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(place, Mapping) or name not in place:
                raise SchemaError(f"$ref points nowhere: {reference[:60]!r}")
            place = place[name]
        return place

    def _list(self, schema: Mapping[str, Any], name: str) -> list[Any]:
        value = schema.get(name, [])
        if not isinstance(value, list):
            raise SchemaError(f"{name} must be a list, got a {type(value).__name__}")
        self._count(len(value))
        return value

    def _count(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise SchemaError(f"the schema takes more than {MAX_STEPS} steps")


def _require_flat(value: Any) -> None:
    """Lists and objects, schemas or not, are at most `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = [item.values() if isinstance(item, Mapping) else item for item in level if isinstance(item, NESTED)]
        level = [inner for items in nested for inner in items]
        if not level:
            return
    raise SchemaError(f"it is nested more than {MAX_DEPTH} deep")


def _object(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = schema.get(name, {})
    if not isinstance(value, Mapping):
        raise SchemaError(f"{name} must be an object, got a {type(value).__name__}")
    return value


def _has_type(value: Any, kinds: Any) -> bool:
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind in ("number", "integer"):
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if not isinstance(value, bool) and (whole or (kind == "number" and isinstance(value, float))):
                return True
        elif not isinstance(kind, str) or kind not in TYPES:
            raise SchemaError(f"type must be one of JSON's, got {str(kind)[:40]!r}")
        elif isinstance(value, TYPES[kind]):
            return True
    return False


def _same(one: Any, other: Any) -> bool:
    """JSON's equality, in which true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _in_range(value: Any, schema: Mapping[str, Any]) -> bool:
    for low, high, kind in SIZES:
        if isinstance(value, kind) and not _number(schema, low, 0) <= len(value) <= _number(schema, high, len(value)):
            return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return (
        _number(schema, "minimum", value) <= value <= _number(schema, "maximum", value)
        and ("exclusiveMinimum" not in schema or value > _number(schema, "exclusiveMinimum", 0))
        and ("exclusiveMaximum" not in schema or value < _number(schema, "exclusiveMaximum", 0))
    )


def _number(schema: Mapping[str, Any], name: str, default: float) -> float:
    value = schema.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SchemaError(f"{name} must be a number, got {str(value)[:40]!r}")
    return value
