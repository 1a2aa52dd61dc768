"""The operations of the code skill: how each is said, written and carried out.

An operation is said in one phrase, written as one statement of Python, and carried out by `apply`, which is
independent of the statement, so that the tests of a task don't come from the code that they test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["numbers", "words", "text", "value"]


@dataclass(frozen=True)
class Operation:
    """One step of a pipeline from `takes` to `gives` ("value" ends it).

    phrases: third-person sayings of the step, with {p} for the parameter. code: the statement, with {v} for the
    variable and {p}. apply(value, parameter) does it. group: what must not follow itself, since it would undo or
    repeat. condition: for a filter, the test alone, which two filters can share. unordered: the order of the input
    makes no difference. result: a new variable, when the kind changes.
    """

    name: str
    takes: Kind
    gives: Kind
    phrases: tuple[str, ...]
    code: str
    apply: Callable[[Any, Any], Any]
    parameters: tuple[Any, ...] = ()
    group: str = ""
    condition: str = ""
    which: str = ""
    unordered: bool = False
    result: str = ""


SMALL: Final = tuple(range(2, 10))
LARGE: Final = tuple(range(2, 21))
FEW: Final = (2, 3, 4, 5)
LETTERS: Final = tuple("abcdefghiklmnoprstuw")
VOWELS: Final = tuple("aeiou")
MARKS: Final = {"commas": ",", "dashes": "-", "spaces": " ", "dots": ".", "slashes": "/", "plus signs": "+"}


def _filter(
    name: str, kind: Kind, which: str, condition: str, test: Callable[[Any, Any], bool], parameters: tuple[Any, ...]
) -> Operation:
    letter = "x" if kind == "numbers" else "w"
    return Operation(
        name,
        kind,
        kind,
        (f"keeps the {kind} that {which}", f"selects the {kind} that {which}"),
        f"{{v}} = [{letter} for {letter} in {{v}} if {condition}]",
        lambda items, p: [item for item in items if test(item, p)],
        parameters,
        group=name,
        condition=condition,
        which=which,
    )


def _map(
    name: str,
    kind: Kind,
    phrases: tuple[str, ...],
    expression: str,
    change: Callable[[Any, Any], Any],
    parameters: tuple[Any, ...] = (),
    group: str = "",
) -> Operation:
    letter = "x" if kind == "numbers" else "w"
    code = f"{{v}} = [{expression} for {letter} in {{v}}]"
    return Operation(
        name, kind, kind, phrases, code, lambda items, p: [change(item, p) for item in items], parameters, group or name
    )


def _joiner(mark: str) -> Callable[[Any, Any], Any]:
    return lambda words, p: mark.join(words)


def _lists(kind: Kind) -> tuple[Operation, ...]:
    """Operations that are the same for every kind of list."""

    def step(
        name: str,
        phrases: tuple[str, ...],
        code: str,
        apply: Callable[[Any, Any], Any],
        parameters: tuple[Any, ...] = (),
        group: str = "order",
    ) -> Operation:
        phrases = tuple(phrase.replace("ITEMS", kind) for phrase in phrases)
        return Operation(name, kind, kind, phrases, code, apply, parameters, group)

    return (
        step("sort", ("sorts the ITEMS", "puts the ITEMS in order"), "{v} = sorted({v})", lambda v, p: sorted(v)),
        step(
            "descend",
            ("sorts the ITEMS in reverse order", "puts the ITEMS in reverse order of size")[: 1 + (kind == "numbers")],
            "{v} = sorted({v}, reverse=True)",
            lambda v, p: sorted(v, reverse=True),
        ),
        step("reverse", ("reverses the list", "turns the list around"), "{v} = {v}[::-1]", lambda v, p: v[::-1]),
        step(
            "unique",
            ("removes repeated ITEMS", "drops duplicate ITEMS"),
            "{v} = list(dict.fromkeys({v}))",
            lambda v, p: [item for i, item in enumerate(v) if item not in v[:i]],
            group="unique",
        ),
        step(
            "first",
            ("takes the first {p} ITEMS", "keeps only the first {p} ITEMS"),
            "{v} = {v}[:{p}]",
            lambda v, p: [item for i, item in enumerate(v) if i < p],
            FEW,
            group="slice",
        ),
        step(
            "skip",
            ("skips the first {p} ITEMS", "leaves out the first {p} ITEMS"),
            "{v} = {v}[{p}:]",
            lambda v, p: [item for i, item in enumerate(v) if i >= p],
            FEW,
            group="slice",
        ),
        step(
            "last",
            ("takes the last {p} ITEMS", "keeps only the last {p} ITEMS"),
            "{v} = {v}[-{p}:]",
            lambda v, p: [item for i, item in enumerate(v) if i >= len(v) - p],
            FEW,
            group="slice",
        ),
        Operation(
            "count",
            kind,
            "value",
            (f"returns how many {kind} there are", f"returns the count of the {kind}"),
            "return len({v})",
            lambda v, p: len(v),
            unordered=True,
        ),
    )


NUMBERS: Final = (
    _filter("even", "numbers", "are even", "x % 2 == 0", lambda x, p: x % 2 == 0, ()),
    _filter("odd", "numbers", "are odd", "x % 2 == 1", lambda x, p: x % 2 == 1, ()),
    _filter("above", "numbers", "are greater than {p}", "x > {p}", lambda x, p: x > p, LARGE),
    _filter("below", "numbers", "are less than {p}", "x < {p}", lambda x, p: x < p, LARGE),
    _filter("multiple", "numbers", "can be divided by {p}", "x % {p} == 0", lambda x, p: x % p == 0, (3, 4, 5)),
    _filter("other", "numbers", "are not equal to {p}", "x != {p}", lambda x, p: x != p, LARGE),
    _map("add", "numbers", ("adds {p} to each number", "increases each number by {p}"), "x + {p}",
         lambda x, p: x + p, LARGE, "shift"),
    _map("subtract", "numbers", ("subtracts {p} from each number", "decreases each number by {p}"), "x - {p}",
         lambda x, p: x - p, LARGE, "shift"),
    _map("multiply", "numbers", ("multiplies each number by {p}", "scales each number by {p}"), "x * {p}",
         lambda x, p: x * p, SMALL, "scale"),
    _map("double", "numbers", ("doubles each number", "makes each number twice as large"), "x * 2",
         lambda x, p: x + x, group="scale"),
    _map("square", "numbers", ("squares each number", "takes the square of each number"), "x * x",
         lambda x, p: x**2, group="square"),
    _map("negate", "numbers", ("negates each number", "changes the sign of each number"), "-x",
         lambda x, p: 0 - x),
    _map("remainder", "numbers", ("takes each number modulo {p}", "reduces each number modulo {p}"),
         "x % {p}", lambda x, p: x % p, (3, 4, 5, 6, 7, 8, 9)),
    *_lists("numbers"),
    Operation("sum", "numbers", "value", ("returns the sum", "returns the total of the numbers"), "return sum({v})",
              lambda v, p: sum(v), unordered=True),
    Operation("largest", "numbers", "value",
              ("returns the largest number or 0 if empty", "returns the maximum or 0 if empty"),
              "return max({v}, default=0)", lambda v, p: sorted(v)[-1] if v else 0, unordered=True),
    Operation("smallest", "numbers", "value",
              ("returns the smallest number or 0 if empty", "returns the minimum or 0 if empty"),
              "return min({v}, default=0)", lambda v, p: sorted(v)[0] if v else 0, unordered=True),
    Operation("occurs", "numbers", "value", ("returns how often {p} occurs", "returns the count of {p}"),
              "return {v}.count({p})", lambda v, p: sum(x == p for x in v), LARGE, unordered=True),
    Operation("has", "numbers", "value", ("returns whether {p} is in the list", "returns true if the list has {p}"),
              "return {p} in {v}", lambda v, p: any(x == p for x in v), LARGE, unordered=True),
)  # fmt: skip

WORDS: Final = (
    _filter("longer", "words", "have more than {p} letters", "len(w) > {p}", lambda w, p: len(w) > p, (3, 4, 5, 6)),
    _filter("shorter", "words", "have less than {p} letters", "len(w) < {p}", lambda w, p: len(w) < p, (4, 5, 6, 7)),
    _filter("starting", "words", 'start with "{p}"', 'w.startswith("{p}")', lambda w, p: w[:1] == p, LETTERS),
    _filter("ending", "words", 'end with "{p}"', 'w.endswith("{p}")', lambda w, p: w[-1:] == p, tuple("dehklnrstwy")),
    _filter("containing", "words", 'contain "{p}"', '"{p}" in w', lambda w, p: p in w, LETTERS),
    _map("upper", "words", ("turns each word to upper case", "makes each word upper case"), "w.upper()",
         lambda w, p: w.upper(), group="case"),
    _map("lower", "words", ("turns each word to lower case", "makes each word lower case"), "w.lower()",
         lambda w, p: w.lower(), group="case"),
    _map("flip", "words", ("reverses each word", "spells each word backwards"), "w[::-1]",
         lambda w, p: "".join(reversed(w))),
    _map("head", "words", ("cuts each word to {p} letters", "keeps the first {p} letters of each word"), "w[:{p}]",
         lambda w, p: w[:p], (2, 3, 4), "cut"),
    _map("tail", "words", ("removes the first letter of each word", "cuts off the first letter of each word"),
         "w[1:]", lambda w, p: w[1:], group="cut"),
    _map("suffix", "words", ('adds "{p}" to each word', 'appends "{p}" to each word'), 'w + "{p}"',
         lambda w, p: w + p, LETTERS),
    _map("prefix", "words", ('puts "{p}" before each word', 'writes "{p}" before each word'), '"{p}" + w',
         lambda w, p: p + w, LETTERS),
    *_lists("words"),
    Operation("lengths", "words", "numbers", ("takes the length of each word", "maps each word to its length"),
              "{r} = [len(w) for w in {v}]", lambda v, p: [len(w) for w in v], result="sizes"),
    *(
        Operation(f"join {mark}", "words", "value",
                  (f"joins the words with {mark}", f"returns the words joined by {mark}"),
                  f'return "{text}".join({{v}})', _joiner(text))
        for mark, text in MARKS.items()
    ),
    Operation("longest", "words", "value", ("returns the longest word", "returns the word with the most letters"),
              'return max({v}, key=len, default="")',
              lambda v, p: next((w for w in v if len(w) == max(map(len, v))), "")),
)  # fmt: skip

TEXT: Final = (
    Operation("lower", "text", "text", ("turns the text to lower case", "makes the text lower case"),
              "{v} = {v}.lower()", lambda v, p: v.lower(), group="case"),
    Operation("upper", "text", "text", ("turns the text to upper case", "makes the text upper case"),
              "{v} = {v}.upper()", lambda v, p: v.upper(), group="case"),
    Operation("strip", "text", "text", ("strips the text", "removes the spaces around the text"),
              "{v} = {v}.strip()", lambda v, p: v.strip(), group="spaces"),
    Operation("backwards", "text", "text", ("reverses the text", "turns the text around"),
              "{v} = {v}[::-1]", lambda v, p: "".join(reversed(v)), group="order"),
    Operation("delete", "text", "text", ('removes every "{p}"', 'deletes every "{p}"'),
              '{v} = {v}.replace("{p}", "")', lambda v, p: "".join(c for c in v if c != p), LETTERS),
    Operation("star", "text", "text", ('replaces every "{p}" with "x"', 'changes every "{p}" to "x"'),
              '{v} = {v}.replace("{p}", "x")', lambda v, p: "".join("x" if c == p else c for c in v), LETTERS),
    Operation("split", "text", "words", ("splits the text into words", "takes the words of the text"),
              "{r} = {v}.split()", lambda v, p: v.split(), result="words"),
    Operation("frequency", "text", "value", ('returns the count of "{p}"', 'returns how often "{p}" occurs'),
              'return {v}.count("{p}")', lambda v, p: sum(c == p for c in v), LETTERS, unordered=True),
    Operation("size", "text", "value", ("returns the length", "returns how long the text is"),
              "return len({v})", lambda v, p: len(v), unordered=True),
)  # fmt: skip

OPERATIONS: Final[dict[Kind, tuple[Operation, ...]]] = {"numbers": NUMBERS, "words": WORDS, "text": TEXT}
