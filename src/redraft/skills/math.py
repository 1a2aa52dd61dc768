"""Math: word problems whose answers write out every step of the arithmetic and end in `Answer: N`.

Numbers of two digits are added and subtracted in columns, so that each figure follows from figures just before it:

    27 + 15: 7 + 5 = 12, 2 + 1 + 1 = 4, 42.     ones as two figures; tens, with the carry as the third term
    42 - 15: 12 - 5 = 7, 4 - 1 - 1 = 2, 27.     ones with what they borrow in front; tens, less the borrow
    23 * 4: 3 * 4 = 12, 2 * 4 + 1 = 9, 92.      ones; tens, plus the carry
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from redraft.skills.base import Skill, Task
from redraft.skills.words import NAMES, THINGS, pieces

Sign = Literal["+", "-", "*"]

LONGEST_RESPONSE: Final = 4000
LONGEST_PROMPT: Final = 70  # pieces; longer problems are drawn again
ANSWER: Final = re.compile(r"^Answer: (-?[0-9]{1,9})\.?[ \t]*$", re.MULTILINE | re.ASCII)

# {a}, {b} are people, {n}, {m} numbers, {t} things.
STARTS: Final = (
    "{a} has {n} {t}.",
    "{a} starts with {n} {t}.",
    "{a} owns {n} {t}.",
    "At first {a} has {n} {t}.",
    "There are {n} {t} in the bag of {a}.",
)
BAGS: Final = (
    "{a} has {m} bags with {n} {t} each.",
    "{a} buys {m} boxes of {n} {t} each.",
    "{a} fills {m} bags with {n} {t} each.",
    "There are {n} {t} in each of the {m} boxes of {a}.",
)
GAINS: Final = (
    "{a} buys {n} more.",
    "{a} finds {n} more.",
    "{a} gets {n} more from {b}.",
    "Then {b} gives {n} to {a}.",
    "{a} makes {n} more.",
    "Then {a} wins {n} more.",
    "{b} brings {n} more to {a}.",
)
LOSSES: Final = (
    "{a} gives {n} to {b}.",
    "{a} sells {n} of them.",
    "{a} loses {n} of them.",
    "Then {b} takes {n} from {a}.",
    "{a} uses {n} of them.",
    "Then {a} throws {n} away.",
    "{a} breaks {n} of them.",
)
QUESTIONS: Final = (
    "How many {t} does {a} have now?",
    "How many {t} does {a} have at the end?",
    "Find the number of {t} that {a} has now.",
    "How many {t} are left for {a}?",
)
MORE: Final = ("{b} has {n} more than {a}.", "{b} owns {n} more {t} than {a}.")
FEWER: Final = ("{b} has {n} fewer than {a}.", "{b} owns {n} fewer {t} than {a}.")
HOW_MANY: Final = ("How many {t} does {b} have?", "Find the number of {t} that {b} has.")
TOGETHER: Final = ("How many {t} do {a} and {b} have together?", "How many {t} do {a} and {b} have in all?")
DIFFERENCE: Final = ("How many more {t} does {a} have than {b}?", "By how many {t} does {a} have more than {b}?")


class Unfit(Exception):
    """A draw whose numbers leave two digits: it is drawn again."""


@dataclass
class Problem:
    """A problem while it is told: its sentences, its steps, and the key of its composition."""

    rng: random.Random
    names: list[str]
    things: str
    sentences: list[str]
    lines: list[str]
    key: list[str]

    def say(self, phrases: tuple[str, ...], label: str, a: int = 0, b: int = 1, **numbers: int) -> None:
        """Adds a sentence about the people number a and b."""
        i = self.rng.randrange(len(phrases))
        self.key.append(f"{label}{i}")
        self.sentences.append(phrases[i].format(a=self.names[a], b=self.names[b], t=self.things, **numbers))

    def number(self) -> int:
        return self.rng.randint(10, 89)

    def step(self, x: int, sign: Sign, y: int, who: int | None = None) -> int:
        result, text = work_out(x, sign, y)
        self.lines.append(f"{self.names[who]}: {text}" if who is not None else text)
        return result

    def start(self, who: int = 0) -> int:
        n = self.number()
        self.say(STARTS, "s", who, who ^ 1, n=n)
        return n

    def bags(self) -> int:
        """So many bags of so many things; worked out at once."""
        m = self.rng.randint(2, 5)
        n = self.rng.randint(10, 99 // m)
        self.say(BAGS, "m", n=n, m=m)
        return self.step(n, "*", m)

    def event(self, x: int, who: int = 0, other: int = 1, label: int | None = None) -> int:
        """The person `who`, with x things, gains or loses some."""
        sign: Sign = self.rng.choice(("+", "-"))
        n = fitting(self.rng, x, sign)
        self.say(GAINS if sign == "+" else LOSSES, sign, who, other, n=n)
        return self.step(x, sign, n, label)

    def relation(self, x: int, a: int, b: int, label: int | None = None) -> int:
        """The person b has more or less than the person a, who has x."""
        sign: Sign = self.rng.choice(("+", "-"))
        n = fitting(self.rng, x, sign)
        self.say(MORE if sign == "+" else FEWER, f"r{sign}", a, b, n=n)
        return self.step(x, sign, n, label)

    def compare(self, x: int, y: int) -> int:
        """Asks what the persons 0 and 1, with x and y, have together, or how many more one has."""
        if self.rng.random() < 0.5:
            self.say(TOGETHER, "t")
            return self.step(x, "+", y)
        if x < y:
            self.say(DIFFERENCE, "d", 1, 0)
            return self.step(y, "-", x)
        self.say(DIFFERENCE, "d", 0, 1)
        return self.step(x, "-", y)


def fitting(rng: random.Random, x: int, sign: Sign) -> int:
    """A number of two digits that keeps x + n or x - n within 10 to 99."""
    largest = 99 - x if sign == "+" else x - 10
    if largest < 10:
        raise Unfit
    return rng.randint(10, largest)


def work_out(x: int, sign: Sign, y: int) -> tuple[int, str]:
    """The result of x sign y and its column arithmetic in words; raises Unfit outside of 10 to 99."""
    result = {"+": x + y, "-": x - y, "*": x * y}[sign]
    if not all(10 <= n <= 99 for n in (x, result)):
        raise Unfit
    if sign == "+":
        ones = x % 10 + y % 10
        columns = f"{x % 10} + {y % 10} = {ones:02d}, {x // 10} + {y // 10} + {ones // 10} = {result // 10}"
    elif sign == "-":
        borrow = int(x % 10 < y % 10)
        columns = f"{borrow}{x % 10} - {y % 10} = {result % 10}, {x // 10} - {y // 10} - {borrow} = {result // 10}"
    else:
        ones = x % 10 * y
        columns = f"{x % 10} * {y} = {ones:02d}, {x // 10} * {y} + {ones // 10} = {result // 10}"
    return result, f"{x} {sign} {y}: {columns}, {result}."


def _single(problem: Problem) -> int:
    """One person and one event, or two people compared."""
    kind = problem.rng.choice(("event", "event", "relation", "compare"))
    x = problem.start()
    if kind == "event":
        x = problem.event(x)
        problem.say(QUESTIONS, "q")
        return x
    if kind == "relation":
        x = problem.relation(x, 0, 1)
        problem.say(HOW_MANY, "h")
        return x
    return problem.compare(x, problem.start(1))


def _double(problem: Problem) -> int:
    """Two events, bags and an event, or a relation and a comparison or a second relation."""
    kind = problem.rng.choice(("events", "events", "bags", "bags", "compare", "relations"))
    if kind in ("events", "bags"):
        x = problem.bags() if kind == "bags" else problem.event(problem.start())
        x = problem.event(x)
        problem.say(QUESTIONS, "q")
        return x
    x = problem.start()
    y = problem.relation(x, 0, 1)
    if kind == "compare":
        # The difference is in the problem already: only the sum is worth asking for.
        problem.say(TOGETHER, "t")
        return problem.step(x, "+", y)
    z = problem.relation(y, 1, 2)
    problem.say(HOW_MANY, "h", 1, 2)
    return z


def _triple(problem: Problem) -> int:
    """Three events, bags and two events, or two people with an event each who are then compared."""
    kind = problem.rng.choice(("events", "bags", "people", "people"))
    if kind == "people":
        x = problem.event(problem.start(0), 0, 2, label=0)
        y = problem.event(problem.start(1), 1, 2, label=1)
        return problem.compare(x, y)
    x = problem.bags() if kind == "bags" else problem.event(problem.start())
    x = problem.event(problem.event(x))
    problem.say(QUESTIONS, "q")
    return x


STORIES: Final[dict[int, Callable[[Problem], int]]] = {1: _single, 2: _double, 3: _triple}


class Math(Skill):
    name: ClassVar[str] = "math"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "one addition or subtraction of two-digit numbers, written out in columns",
        2: "two steps: additions, subtractions, a product with one digit, or a chain of comparisons",
        3: "three steps, or two people who each gain or lose and are then compared",
    }

    def sample(self, rng: random.Random, level: int) -> Task:
        while True:
            problem = Problem(rng, rng.sample(NAMES, 3), rng.choice(tuple(THINGS.values())), [], [], [])
            try:
                result = STORIES[level](problem)
            except Unfit:
                continue
            prompt = " ".join(problem.sentences)
            if pieces(prompt) > LONGEST_PROMPT:
                continue
            return Task(
                skill=self.name,
                level=level,
                prompt=prompt,
                answer="\n".join([*problem.lines, f"Answer: {result}"]),
                composition=" ".join(problem.key),
                reference={"number": result},
            )

    def grade(self, task: Task, response: str) -> float:
        """Right if the last line of the form `Answer: N` gives the number."""
        if len(response) > LONGEST_RESPONSE:
            return 0.0
        found = ANSWER.findall(response)
        return float(bool(found) and int(found[-1]) == task.reference["number"])


SKILL: Final = Math()
