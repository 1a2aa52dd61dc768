"""Small records of people, orders, events, ...: the material of the *structured* skill.

A `Field` knows the keys that a prompt may use for it, how its values are drawn and which clauses state it in English.
A `Domain` is a subject with fields. Keys are unique within a domain, so a key leads back to its field.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from redraft.skills.words import ANIMALS, CITIES, COLORS, DAYS, JOBS, MONTHS, NAMES, THINGS, VERBS

Draw = Callable[[random.Random], Any]

PLURALS: Final = tuple(THINGS.values())
EVENTS: Final = ("party", "class", "concert", "meeting", "race", "dinner", "show", "game", "test", "dance")
FOODS: Final = ("bread", "rice", "soup", "cake", "fish", "eggs", "apples", "cookies")
MATERIALS: Final = ("glass", "paper", "iron", "gold", "silver", "stone")
VEHICLES: Final = ("train", "bus", "car", "boat", "plane", "bike")
PETS: Final = tuple(animal for animal in ANIMALS if animal[0] not in "aeiou")  # these go after "a"


@dataclass(frozen=True)
class Field:
    """One property: `keys` it may have, `draw` of a value (a list where `many`), clauses with {} for the value.

    A flag has clauses without {} for true and `negations` for false.
    """

    keys: tuple[str, ...]
    draw: Draw
    clauses: tuple[str, ...]
    negations: tuple[str, ...] = ()
    many: bool = False

    @property
    def name(self) -> str:
        return self.keys[0]

    def clause(self, rng: random.Random, value: Any) -> str:
        """A clause that states the value, such as "lives in Paris"."""
        forms = self.negations if value is False else self.clauses
        return rng.choice(forms).format(spoken(value))


@dataclass(frozen=True)
class Domain:
    """A kind of record: its subject (always the first entry), its other fields, and records that may nest in it."""

    name: str
    subject: Field
    fields: tuple[Field, ...]
    inner: tuple[tuple[str, str], ...]

    @cached_property
    def field_of(self) -> dict[str, Field]:
        return {key: field for field in (self.subject, *self.fields) for key in field.keys}

    def choose(self, rng: random.Random, count: int, *, scalar: bool = False, without: str = "") -> list[Field]:
        """The subject and `count - 1` other fields in random order; `scalar` leaves out lists."""
        pool = [f for f in self.fields if not (scalar and f.many) and without not in f.keys]
        return [self.subject, *rng.sample(pool, min(count - 1, len(pool)))]


def spoken(value: Any) -> str:
    """A value as a sentence has it."""
    if isinstance(value, list):
        return f"{', '.join(value[:-1])} and {value[-1]}"
    return str(value)


def record(rng: random.Random, fields: Sequence[Field]) -> dict[str, Any]:
    """Draws a key and a value for each field."""
    return {rng.choice(field.keys): field.draw(rng) for field in fields}


def word(pool: Sequence[str]) -> Draw:
    return lambda rng: rng.choice(pool)


def number(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def words(pool: Sequence[str]) -> Draw:
    return lambda rng: rng.sample(pool, rng.randint(2, 3))


def flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _price(clause: str = "costs {} dollars") -> Field:
    return Field(("price", "cost"), number(2, 20), (clause, clause.replace("dollars", "coins")))


PERSON: Final = Domain(
    "person",
    Field(("name", "person"), word(NAMES), ("{}",)),
    (
        Field(("age", "years"), number(18, 80), ("is {} years old", "is {}")),
        Field(("city", "town", "home"), word(CITIES), ("lives in {}", "comes from {}")),
        Field(("job", "work"), word(JOBS), ("works as a {}", "is a {}")),
        Field(("pet", "animal"), word(PETS), ("has a {}", "owns a {}")),
        Field(("color",), word(COLORS), ("wears {}", "likes {}")),
        Field(("children", "kids"), number(2, 9), ("has {} children", "has {} kids")),
        Field(("member",), flag, ("is a member",), ("is not a member",)),
        Field(("things", "owns"), words(PLURALS), ("collects {}", "needs {}"), many=True),
    ),
    (("pet", "animal"), ("order", "order")),
)
ORDER: Final = Domain(
    "order",
    Field(("id", "order"), number(10, 99), ("Order {}", "The order {}")),
    (
        Field(("customer", "name"), word(NAMES), ("is for {}", "comes from {}")),
        Field(("items", "goods"), words(PLURALS), ("contains {}", "lists {}"), many=True),
        _price(),
        Field(("city", "place"), word(CITIES), ("goes to {}", "is sent to {}")),
        Field(("day", "date"), word(DAYS), ("arrives on {}", "is due on {}")),
        Field(("boxes", "size"), number(1, 12), ("fills {} boxes", "needs {} boxes")),
        Field(("paid", "done"), flag, ("is paid",), ("is not paid",)),
    ),
    (("customer", "person"), ("item", "thing")),
)
EVENT: Final = Domain(
    "event",
    Field(("event", "title"), word(EVENTS), ("The {}", "Our {}")),
    (
        Field(("day", "date"), word(DAYS), ("is on {}", "takes place on {}")),
        Field(("hour", "start"), number(1, 12), ("starts at {}", "begins at {}")),
        Field(("city", "place"), word(CITIES), ("is in {}", "happens in {}")),
        Field(("host", "leader"), word(NAMES), ("is led by {}", "is run by {}")),
        Field(("seats", "size"), number(5, 60), ("has {} seats",)),
        Field(("guests", "names"), words(NAMES), ("is for {}", "brings in {}"), many=True),
        Field(("free", "open"), flag, ("is free",), ("is not free",)),
        _price(),
    ),
    (("host", "person"), ("prize", "thing")),
)
THING: Final = Domain(
    "thing",
    Field(("item", "thing"), word(tuple(THINGS)), ("The {}", "This {}")),
    (
        Field(("color",), word(COLORS), ("is {}", "looks {}")),
        _price(),
        Field(("material",), word(MATERIALS), ("is made of {}",)),
        Field(("owner", "name"), word(NAMES), ("belongs to {}", "is from {}")),
        Field(("shelf", "place"), number(1, 20), ("is on shelf {}", "lies on shelf {}")),
        Field(("count", "number"), number(2, 15), ("comes in packs of {}", "is sold in boxes of {}")),
        Field(("parts", "extras"), words(PLURALS), ("comes with {}", "is sold with {}"), many=True),
        Field(("new",), flag, ("is new",), ("is not new",)),
    ),
    (("owner", "person"), ("order", "order")),
)
ANIMAL: Final = Domain(
    "animal",
    Field(("animal", "kind"), word(ANIMALS), ("The {}", "Our {}")),
    (
        Field(("name",), word(NAMES), ("is called {}", "is named {}")),
        Field(("age", "years"), number(1, 15), ("is {} years old", "is {}")),
        Field(("weight",), number(2, 60), ("weighs {} pounds",)),
        Field(("food", "eats"), word(FOODS), ("eats {}", "likes {}")),
        Field(("color",), word(COLORS), ("is {}", "looks {}")),
        Field(("owner", "person"), word(NAMES), ("belongs to {}", "lives with {}")),
        Field(("tricks", "skills"), words(VERBS[:10]), ("can {}", "learns to {}"), many=True),
        Field(("old",), flag, ("is old",), ("is not old",)),
    ),
    (("owner", "person"), ("toy", "thing")),
)
TRIP: Final = Domain(
    "trip",
    Field(("city", "trip"), word(CITIES), ("The trip to {}", "Our trip to {}")),
    (
        Field(("month", "date"), word(MONTHS), ("is in {}", "starts in {}")),
        Field(("days", "length"), number(2, 15), ("takes {} days", "lasts {} days")),
        Field(("transport", "travel"), word(VEHICLES), ("is by {}", "goes by {}")),
        Field(("guide", "leader"), word(NAMES), ("is led by {}", "is run by {}")),
        Field(("guests", "names"), words(NAMES), ("is for {}", "brings in {}"), many=True),
        Field(("full",), flag, ("is full",), ("is not full",)),
        _price(),
    ),
    (("guide", "person"), ("event", "event")),
)

DOMAINS: Final = {domain.name: domain for domain in (PERSON, ORDER, EVENT, THING, ANIMAL, TRIP)}
