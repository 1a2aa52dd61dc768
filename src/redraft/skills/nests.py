"""Compact English that unfolds into an object with a list of objects inside: level 3 of the *structured* skill."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from redraft.skills.records import MATERIALS, PETS, PLURALS, VEHICLES, Draw, number, word
from redraft.skills.words import ADJECTIVES, CITIES, COLORS, DAYS, JOBS, NAMES


@dataclass(frozen=True)
class Part:
    """One value of a nest: the keys that may name it, and how it is drawn."""

    keys: tuple[str, ...]
    draw: Draw


@dataclass(frozen=True)
class Nest:
    """A head (one object) and a list of rows (objects); `head_text` and `row_text` state them by position."""

    name: str
    head_keys: tuple[str, ...]
    head: tuple[Part, ...]
    head_text: tuple[str, ...]
    list_keys: tuple[str, ...]
    row: tuple[Part, ...]
    row_text: tuple[str, ...]


_NAME = Part(("name", "person"), word(NAMES))
_CITY = Part(("city", "town"), word(CITIES))
_JOB = Part(("job", "work"), word(JOBS))
_PRICE = Part(("price", "cost"), number(2, 20))
_COUNT = Part(("count", "number"), number(2, 20))
_COLOR = Part(("color",), word(COLORS))
_DAY = Part(("day", "date"), word(DAYS))
_HOUR = Part(("hour", "start"), number(1, 12))

NESTS: Final = (
    Nest(
        "order",
        ("customer", "client"),
        (_NAME, _CITY),
        ("{} from {} orders", "{} in {} buys"),
        ("items", "goods"),
        (_COUNT, Part(("item", "thing"), word(PLURALS)), _PRICE),
        ("{} {} at {}", "{} {} for {}"),
    ),
    Nest(
        "team",
        ("leader", "host"),
        (_NAME, _JOB),
        ("{} the {} leads", "{} the {} meets"),
        ("team", "people"),
        (_NAME, Part(("age", "years"), number(18, 60)), _CITY),
        ("{} ({}, {})", "{} of {} from {}"),
    ),
    Nest(
        "trip",
        ("guide", "leader"),
        (_NAME, _CITY),
        ("{} from {} plans", "{} in {} plans"),
        ("stops", "trips"),
        (Part(("days", "length"), number(2, 14)), _CITY, Part(("transport", "travel"), word(VEHICLES))),
        ("{} days in {} by {}", "{} days {} {}"),
    ),
    Nest(
        "farm",
        ("owner", "farmer"),
        (_NAME, _CITY),
        ("{} from {} keeps", "{} in {} owns"),
        ("animals", "pets"),
        (_COLOR, Part(("animal", "kind"), word(PETS)), Part(("age", "years"), number(1, 15))),
        ("a {} {} of {}", "a {} {} aged {}"),
    ),
    Nest(
        "shop",
        ("shop", "market"),
        (_CITY, Part(("street", "place"), word(("river", "garden", "park", "station", "school", "tower", "bridge")))),
        ("The shop in {} by the {} sells", "Our shop in {} near the {} has"),
        ("goods", "items"),
        (_COLOR, Part(("item", "thing"), word(PLURALS)), _PRICE),
        ("{} {} at {}", "{} {} for {}"),
    ),
    Nest(
        "calendar",
        ("person", "user"),
        (Part(("name",), word(NAMES)), _JOB),
        ("{} the {} has meetings", "{} the {} is busy"),
        ("meetings", "events"),
        (_DAY, _HOUR, _CITY),
        ("{} at {} in {}", "{} {} {}"),
    ),
    Nest(
        "parts",
        ("machine", "thing"),
        (Part(("color",), word(COLORS)), Part(("size",), word(ADJECTIVES[:7]))),
        ("A {} and {} machine has", "The {} and {} machine needs"),
        ("parts", "pieces"),
        (_COUNT, Part(("material",), word(MATERIALS)), Part(("part", "name"), word(PLURALS))),
        ("{} {} {}",),
    ),
)


def draw_nest(nest: Nest, rng: random.Random, count: int) -> tuple[dict[str, Any], str, str]:
    """A value with `count` rows, the shape that the prompt states for it and the text it is told by."""
    head_key, list_key = rng.choice(nest.head_keys), rng.choice(nest.list_keys)
    head_names, head_order = _names(nest.head, rng)
    row_names, row_order = _names(nest.row, rng)
    head = [part.draw(rng) for part in nest.head]
    rows = [[part.draw(rng) for part in nest.row] for _ in range(count)]
    row_text = rng.choice(nest.row_text)
    told = [row_text.format(*row) for row in rows]
    text = f"{rng.choice(nest.head_text).format(*head)} {', '.join(told)}."
    shape = (
        f"{head_key} ({', '.join(head_names[at] for at in head_order)}), "
        f"{list_key} ({', '.join(row_names[at] for at in row_order)})"
    )
    value = {
        head_key: {head_names[at]: head[at] for at in head_order},
        list_key: [{row_names[at]: row[at] for at in row_order} for row in rows],
    }
    return value, shape, text


def _names(parts: tuple[Part, ...], rng: random.Random) -> tuple[list[str], list[int]]:
    """A key for each part, and the order in which the object has them."""
    return [rng.choice(part.keys) for part in parts], rng.sample(range(len(parts)), len(parts))
