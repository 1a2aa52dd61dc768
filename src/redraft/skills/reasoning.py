"""Reasoning in written steps: orderings, lists, rules, elimination, truth values and positions.

Every step is a line that follows from a few words nearby, so that a small model can learn the steps rather than
guess the outcome. Only the final `Answer:` line is graded; the steps are the training target's way there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

from redraft.skills.base import Skill, Task
from redraft.skills.reasoning_lists import list_puzzle
from redraft.skills.words import NAMES

MAX_RESPONSE: Final = 4000  # characters; no right answer comes near
THINGS: Final = ("ball", "key", "pen", "cup", "ring", "hat", "coin", "map", "book", "bag", "lamp", "drum")
COMPARISONS: Final = (
    ("taller", "tallest", "shorter", "shortest"),
    ("older", "oldest", "younger", "youngest"),
    ("faster", "fastest", "slower", "slowest"),
    ("richer", "richest", "poorer", "poorest"),
    ("stronger", "strongest", "weaker", "weakest"),
    ("heavier", "heaviest", "lighter", "lightest"),
)
ACTIONS: Final = (("comes", "come"), ("sings", "sing"), ("runs", "run"), ("stays", "stay"), ("waits", "wait"))
QUALITIES: Final = ("tall", "old", "fast", "happy", "quiet", "loud")
COMPASS: Final = ("north", "east", "south", "west")
TURNS: Final = {"right": 1, "around": 2, "left": 3}


class Puzzle(NamedTuple):
    """key: the composition. steps: the lines before `Answer: {answer}`."""

    key: str
    prompt: str
    steps: Sequence[str]
    answer: str


def _ordering(rng: random.Random, level: int) -> Puzzle:
    """Comparisons of neighbours, in any order and from either side; level 3 picks a place of the order."""
    more, most, less, least = rng.choice(COMPARISONS)
    names = rng.sample(NAMES, {1: rng.choice((3, 3, 4)), 2: 5, 3: rng.choice((4, 5, 5))}[level])
    links = list(enumerate(pairwise(names)))
    rng.shuffle(links)
    facts, pattern = [], ""
    for place, (high, low) in links:
        flipped = rng.random() < 0.5
        facts.append(f"{low} is {less} than {high}." if flipped else f"{high} is {more} than {low}.")
        pattern += f"{place}{'-' if flipped else '+'}"
    rising = rng.random() < 0.5
    end = least if rising else most
    steps = [f"{high} > {low}" for _, (high, low) in links]
    steps += [f"Below: {', '.join(low for _, (_, low) in links)}", f"Top: {names[0]}", f"Order: {' > '.join(names)}"]
    ranked = names[::-1] if rising else names
    kind = rng.choice({1: ("end", "list"), 2: ("end", "list", "list"), 3: ("second", "next", "count")}[level])
    if kind == "list":
        question, answer = f"List all from {end} to {most if rising else least}.", ", ".join(ranked)
    elif kind == "end":
        question, answer = f"Who is the {end}?", ranked[0]
    elif kind == "second":
        question, answer = f"Who is the second {end}?", ranked[1]
    elif kind == "next":
        place = rng.randrange(1, len(ranked))
        question, answer = f"Who is the next one {less if rising else more} than {ranked[place]}?", ranked[place - 1]
    else:
        place = rng.randrange(1, len(ranked))
        question, answer = f"How many are {less if rising else more} than {ranked[place]}?", str(place)
    if level == 3:
        steps.append(f"From {end}: {', '.join(f'{rank} {name}' for rank, name in enumerate(ranked, 1))}")
    asked_first = rng.random() < 0.3
    prompt = " ".join([question, *facts] if asked_first else [*facts, question])
    return Puzzle(f"ordering/{more}/{pattern}/{kind}/{end}/{asked_first}", prompt, steps, answer)


def _rules(rng: random.Random, level: int) -> Puzzle:
    """If-then rules that are followed from one fact; some rules never apply."""
    does, do = rng.choice(ACTIONS)
    length, idle = rng.choice(
        {1: ((2, 0), (1, 1), (2, 1)), 2: ((4, 0), (3, 1), (2, 2)), 3: ((3, 1), (4, 0), (4, 1), (4, 1))}[level]
    )
    names = rng.sample(NAMES, length + 1 + idle)
    known, unknown = names[: length + 1], names[length + 1 :]
    rules = [(first, second, "r") for first, second in pairwise(known)]
    rules += [(name, rng.choice([other for other in names[1:] if other != name]), "i") for name in unknown]
    rng.shuffle(rules)
    texts, pattern = [], ""
    for first, second, role in rules:
        form = rng.randrange(3)
        forms = (f"If {first} {does}, {second} {does}.", f"{second} {does} if {first} {does}.")
        texts.append((*forms, f"When {first} {does}, {second} {does}.")[form])
        pattern += f"{role}{form}"
    given = f"{known[0]} {does}."
    fact_first = rng.random() < 0.5
    texts = [given, *texts] if fact_first else [*texts, given]
    steps = [f"{known[0]} {does}"]
    steps += [f"{first}, so {second}" for first, second in pairwise(known)]
    steps += [f"{known[-1]}: no rule", f"All: {', '.join(known)}"]

    def drawn() -> str:
        return rng.choice(unknown) if unknown and rng.random() < 0.5 else rng.choice(known[1:])

    kind = rng.choice({1: ("who", "must"), 2: ("who", "must"), 3: ("and", "or", "count")}[level])
    if kind == "who":
        question, answer = f"Who {does}?", ", ".join(known)
    elif kind == "must":
        name = drawn()
        question, answer = f"Must {name} {do}?", _yes(name in known)
        steps.append(f"{name} in all: {answer}")
    elif kind == "count":
        question, answer = f"How many {do}?", str(len(known))
        steps.append(", ".join(f"{count} {name}" for count, name in enumerate(known, 1)))
    else:
        one, two = rng.sample(names[1:], 2)
        question = f"Must {one} {kind} {two} {do}?"
        answer = _yes(one in known and two in known if kind == "and" else one in known or two in known)
        steps += [f"{name} in all: {_yes(name in known)}" for name in (one, two)]
        steps.append(f"{_yes(one in known)} {kind} {_yes(two in known)}: {answer}")
    return Puzzle(f"rules/{does}/{pattern}/{kind}/{fact_first}", " ".join([*texts, question]), steps, answer)


def _elimination(rng: random.Random, level: int) -> Puzzle:
    """Who has what, by leaving out what others have; level 3 swaps two things afterwards."""
    count = 4 if level == 2 else 3
    names: list[str] = rng.sample(NAMES, count)
    things: list[str] = rng.sample(THINGS, count)
    owned = list(zip(names, things, strict=True))
    *_, second, last = owned
    facts = [f"{name} has the {thing}." for name, thing in owned[:-2]]
    steps = [f"{name}: {thing}" for name, thing in owned[:-2]]
    shuffled = rng.sample(things, count)
    left = [thing for thing in shuffled if thing in (second[1], last[1])]
    negated = rng.choice(("does not have", "does not own"))
    facts.append(f"{second[0]} {negated} the {last[1]}.")
    steps += [
        f"Left: {', '.join(left)}",
        f"{second[0]}: not {last[1]}, so {second[1]}",
        f"{last[0]}: {last[1]}",
    ]
    order = rng.sample(range(len(facts)), len(facts))
    people = rng.sample(names, count)
    intro = rng.randrange(3)
    opening = (
        f"People: {', '.join(people)}. Things: {', '.join(shuffled)}.",
        f"{', '.join(people[:-1])} and {people[-1]} each have one of: {', '.join(shuffled)}.",
        f"Each of {', '.join(people)} has one thing: {', '.join(shuffled)}.",
    )[intro]
    parts = [opening, *(facts[index] for index in order)]
    owners = dict(owned)
    key = f"elimination/{count}/{order}/{negated}/{intro}"
    if level > 1:
        steps.append(f"All: {_state(people, owners)}")
    if level == 3:
        pair = rng.sample(names, 2)
        parts.append(f"Then {pair[0]} and {pair[1]} swap.")
        _swap(owners, *pair)
        steps.append(f"{pair[0]} and {pair[1]}: {_state(people, owners)}")
        key += f"/swap{sorted(names.index(name) for name in pair)}"
    question, answer, kind = _ask_owner(rng, owners, names[-2:] if level < 3 else names)
    return Puzzle(f"{key}/{kind}", " ".join([*parts, question]), steps, answer)


def _truth(rng: random.Random, level: int) -> Puzzle:
    """Truth of a compound statement about stated facts."""
    quality = rng.choice(QUALITIES)
    names = rng.sample(NAMES, {1: rng.choice((2, 3)), 2: 4, 3: 4}[level])
    values = {name: rng.random() < 0.5 for name in names}
    facts = [f"{name} is {'' if values[name] else 'not '}{quality}." for name in names]
    asked = rng.sample(names, {1: 2, 2: 3, 3: 4}[level])
    operators = [rng.choice(("and", "or")) for _ in asked[1:]]
    negated = [rng.random() < 0.3 for _ in asked]
    claims = [f"{name} is {'not ' if no else ''}{quality}" for name, no in zip(asked, negated, strict=True)]
    held = [values[name] != no for name, no in zip(asked, negated, strict=True)]
    steps = [f"{claim}: {_true(value)}" for claim, value in zip(claims, held, strict=True)]

    if level == 2:
        steps.append(f"({_true(held[0])} {operators[0]} {_true(held[1])}) {operators[1]} {_true(held[2])}")
    elif level == 3:
        left, right = (f"{_true(held[at])} {operators[at]} {_true(held[at + 1])}" for at in (0, 2))
        steps.append(f"({left}) {operators[1]} ({right})")

    def joined(one: bool, operator: str, two: bool) -> bool:
        value = one and two if operator == "and" else one or two
        steps.append(f"{_true(one)} {operator} {_true(two)}: {_true(value)}")
        return value

    answer = joined(held[0], operators[0], held[1])
    statement = f"{claims[0]} {operators[0]} {claims[1]}"
    if level == 2:
        answer = joined(answer, operators[1], held[2])
        statement = f"({statement}) {operators[1]} {claims[2]}"
    elif level == 3:
        other = joined(held[2], operators[2], held[3])
        answer = joined(answer, operators[1], other)
        statement = f"({statement}) {operators[1]} ({claims[2]} {operators[2]} {claims[3]})"
    form = rng.randrange(3)
    question = (f"True or false: {statement}?", f"Is it true: {statement}?", f"Check: {statement}.")[form]
    shape = "".join(f"{'-' if no else '+'}" for no in negated)
    key = f"truth/{quality}/{len(names)}/{operators}/{shape}/{form}"
    return Puzzle(key, " ".join([*facts, question]), steps, _true(answer))


def _cups(rng: random.Random, level: int) -> Puzzle:
    """A thing under one of three or four cups that are swapped in pairs."""
    thing, container = rng.choice(THINGS), rng.choice(("box", "bowl", "shell", "door"))
    cups = rng.choice((3, 4))
    place = rng.randint(1, cups)
    swaps = [sorted(rng.sample(range(1, cups + 1), 2)) for _ in range(4 if level == 2 else rng.choice((2, 3)))]
    form = rng.randrange(2)
    parts = [f"The {thing} is in {container} {place}." if form else f"{container.capitalize()} {place}: {thing}."]
    parts += [f"Swap {one} and {two}." for one, two in swaps]
    steps = [f"Start: {container} {place}"]
    moved = ""
    for one, two in swaps:
        hit = place in (one, two)
        before, place = place, one + two - place if hit else place
        moved += "+" if hit else "-"
        steps.append(f"{container} {before}, {one} and {two}: {container} {place}")
    prompt = " ".join([*parts, f"Where is the {thing}?"])
    return Puzzle(f"cups/{container}/{cups}/{moved}/{form}", prompt, steps, f"{container} {place}")


def _turns(rng: random.Random, level: int) -> Puzzle:
    """Which way somebody faces after some turns."""
    heading = rng.randrange(4)
    name = rng.choice(("You", *NAMES[:12]))
    turns = [rng.choice(tuple(TURNS)) for _ in range(5 if level == 2 else 3)]
    steps = [f"Start: {COMPASS[heading]}"]
    parts = [f"{name} face{'' if name == 'You' else 's'} {COMPASS[heading]}."]
    for turn in turns:
        before, heading = heading, (heading + TURNS[turn]) % 4
        steps.append(f"{COMPASS[before]}, {turn}: {COMPASS[heading]}")
    form = rng.randrange(2)
    parts += [f"Turn {turn}." for turn in turns] if form else [f"Turns: {', '.join(turns)}."]
    key = f"turns/{name == 'You'}/{turns}/{form}"
    return Puzzle(key, " ".join([*parts, "Which way now?"]), steps, COMPASS[heading])


def _exchange(rng: random.Random, level: int) -> Puzzle:
    """Three people swap what they have; the state is written after each swap."""
    names: list[str] = rng.sample(NAMES, 3)
    owners: dict[str, str] = dict(zip(names, rng.sample(THINGS, 3), strict=True))
    form = rng.randrange(2)
    parts = [f"{name} has the {thing}." for name, thing in owners.items()] if form else [f"{_state(names, owners)}."]
    pairs = [rng.sample(range(3), 2) for _ in range({1: 1, 2: 2, 3: 3}[level])]
    steps = [_state(names, owners)]
    for one, two in pairs:
        parts.append(f"{names[one]} and {names[two]} swap.")
        _swap(owners, names[one], names[two])
        steps.append(f"{names[one]} and {names[two]}: {_state(names, owners)}")
    question, answer, kind = _ask_owner(rng, owners, names)
    return Puzzle(f"exchange/{pairs}/{kind}/{form}", " ".join([*parts, question]), steps, answer)


def _list(rng: random.Random, level: int) -> Puzzle:
    return Puzzle(*list_puzzle(rng, level))


def _state(names: Sequence[str], owners: dict[str, str]) -> str:
    return ", ".join(f"{name} {owners[name]}" for name in names)


def _swap(owners: dict[str, str], one: str, two: str) -> None:
    owners[one], owners[two] = owners[two], owners[one]


def _ask_owner(rng: random.Random, owners: dict[str, str], names: Sequence[str]) -> tuple[str, str, str]:
    name = rng.choice(names)
    if rng.random() < 0.5:
        return f"Who has the {owners[name]}?", name, "who"
    return f"What does {name} have?", owners[name], "what"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _true(value: bool) -> str:
    return "true" if value else "false"


Family = Callable[[random.Random, int], Puzzle]
# Lists count twice: they are the widest family.
FAMILIES: Final[dict[int, tuple[Family, ...]]] = {
    1: (_ordering, _list, _list, _rules, _elimination, _truth, _cups, _turns, _exchange),
    2: (_ordering, _list, _list, _rules, _elimination, _truth, _cups, _turns, _exchange),
    3: (_ordering, _list, _list, _rules, _elimination, _truth, _exchange),
}


def final_answer(response: str) -> str | None:
    """The text of the only `Answer:` line, which must be the last one; None without it."""
    lines = [line.strip() for line in response.strip().splitlines()]
    if not lines or len(response) > MAX_RESPONSE or sum(line.startswith("Answer:") for line in lines) != 1:
        return None
    return lines[-1].removeprefix("Answer:").strip() if lines[-1].startswith("Answer:") else None


def _items(text: str) -> list[str]:
    return [item.strip().casefold() for item in text.rstrip(".").split(",")]


class Reasoning(Skill):
    """Small puzzles, solved in written steps that end in `Answer: ...`."""

    name: ClassVar[str] = "reasoning"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "one stage over 2-3 facts, swaps or turns, or one list operation on 3-5 items",
        2: "one stage over 4-5 facts, swaps or turns (two full-state swaps), or one list operation on 4-7 items",
        3: "two stages: order then rank, filter then sort, rules then and/or, eliminate then swap, nested truth, swaps",
    }

    def sample(self, rng: random.Random, level: int) -> Task:
        puzzle = rng.choice(FAMILIES[level])(rng, level)
        answer = "\n".join([*puzzle.steps, f"Answer: {puzzle.answer}"])
        return Task(self.name, level, puzzle.prompt, answer, f"{level}/{puzzle.key}", {"answer": puzzle.answer})

    def grade(self, task: Task, response: str) -> float:
        given = final_answer(response)
        return float(given is not None and _items(given) == _items(task.reference["answer"]))


SKILL: Final = Reasoning()
