"""List operations in written steps, one or two of them in a row: sort, filter, reverse, count, pick, drop repeats.

Sorting is repeated selection: each line writes what is left and what is taken. Numbers of one list have the same
width and, where they are sorted, different leading digits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from redraft.skills.words import ANIMALS, COLORS, THINGS

WORDS: Final = (*COLORS, *ANIMALS, *THINGS)
PLACES: Final = ("first", "second", "third", "fourth", "fifth", "sixth")


class Stage(NamedTuple):
    """One operation on one list. phrase: as an order, in lower case. items: its result."""

    key: str
    phrase: str
    steps: Sequence[str]
    items: Sequence[str]


def list_puzzle(rng: random.Random, level: int) -> tuple[str, str, list[str], str]:
    """(composition, prompt, steps, answer) of one operation (levels 1 and 2) or two in a row (level 3)."""
    if level == 3:
        source, followers = rng.choice(TWO_STAGES)
        items, first = source(rng, level)
        stages = [first, rng.choice(followers)(rng, first.items)]
    else:
        items, first = rng.choice(ONE_STAGE)(rng, level)
        stages = [first]
    form = rng.randrange(3)
    phrases, listed = [stage.phrase for stage in stages], ", ".join(items)
    order = ", then ".join(phrases)
    prompt = (
        f"{order[0].upper()}{order[1:]}: {listed}",
        f"List: {listed}. {'. Then '.join([phrases[0][0].upper() + phrases[0][1:], *phrases[1:]])}.",
        f"Take {listed} and {order}.",
    )[form]
    steps = [line for stage in stages for line in stage.steps]
    key = "/".join(["list", str(len(items)), *(stage.key for stage in stages), str(form)])
    return key, prompt, steps, ", ".join(stages[-1].items)


def _number_list(rng: random.Random, size: int) -> list[int]:
    """Distinct numbers of one width with different leading digits."""
    leading = rng.sample(range(1, 10), size)
    return leading if rng.random() < 0.3 else [10 * digit + rng.randrange(10) for digit in leading]


def _sort(rng: random.Random, items: Sequence[str]) -> Stage:
    falling = rng.random() < 0.5
    ends = ("large to small", "high to low") if falling else ("small to large", "low to high")
    end, verb = rng.randrange(2), rng.choice(("sort", "order"))
    word = "largest" if falling else "smallest"
    left, taken, steps = list(items), [], []
    while left:
        pick = (max if falling else min)(left, key=int)
        steps.append(f"{', '.join(left)}: {word} {pick}")
        left.remove(pick)
        taken.append(pick)
    return Stage(f"sort-{verb}-{ends[end]}", f"{verb} them from {ends[end]}", steps, taken)


def _reverse(rng: random.Random, items: Sequence[str]) -> Stage:
    phrase = rng.choice(("reverse the list", "reverse the order", "write them backwards"))
    numbered = [f"{place} {item}" for place, item in enumerate(items, 1)]
    return Stage(f"reverse-{phrase}", phrase, [", ".join(numbered), ", ".join(numbered[::-1])], list(items[::-1]))


def _count(rng: random.Random, items: Sequence[str]) -> Stage:
    phrase = rng.choice(("count them", "count what is left", "say how many there are"))
    steps = [", ".join(f"{place} {item}" for place, item in enumerate(items, 1))]
    return Stage(f"count-{phrase}", phrase, steps, [str(len(items))])


def _pick(rng: random.Random, items: Sequence[str]) -> Stage:
    place = rng.randrange(len(items))
    verb = rng.choice(("pick", "take", "give"))
    steps = [", ".join(f"{index} {item}" for index, item in enumerate(items, 1))]
    return Stage(f"{verb}-{PLACES[place]}", f"{verb} the {PLACES[place]} one", steps, [items[place]])


def _sorted_source(rng: random.Random, level: int) -> tuple[list[str], Stage]:
    items = [str(number) for number in _number_list(rng, 3 if level == 1 else 4)]
    return items, _sort(rng, items)


def _filtered_source(rng: random.Random, level: int) -> tuple[list[str], Stage]:
    """Keeps what is above or below a multiple of ten, or what is even or odd."""
    kept, dropped = {1: (rng.choice((1, 2)), 2), 2: (rng.choice((2, 3)), 3), 3: (3, 2)}[level]
    test = rng.choice(("above", "below", "even", "odd"))
    limit = 10 * rng.randint(4, 7)
    if test in ("above", "below"):
        tens = (range(limit // 10, 10), range(1, limit // 10))
        high, low = (kept, dropped) if test == "above" else (dropped, kept)
        numbers = [10 * ten + rng.randint(1, 9) for ten in (*rng.sample(tens[0], high), *rng.sample(tens[1], low))]
        keeps = [number > limit if test == "above" else number < limit for number in numbers]
    else:
        parity = int(test == "odd")
        keeps = [place < kept for place in range(kept + dropped)]
        leading = rng.sample(range(1, 10), kept + dropped)
        numbers = [
            10 * ten + 2 * rng.randrange(5) + (parity if keep else 1 - parity)
            for ten, keep in zip(leading, keeps, strict=True)
        ]
    pairs = list(zip(numbers, keeps, strict=True))
    rng.shuffle(pairs)
    verb = rng.choice(("keep only", "keep", "select"))
    if test in ("above", "below"):
        phrase = f"{verb} the numbers {test} {limit}"
        sign = ">" if test == "above" else "<"
        steps = [f"{number} {sign} {limit}: {'yes' if keep else 'no'}" for number, keep in pairs]
    else:
        phrase = f"{verb} the {test} numbers"
        steps = [f"{number} {'odd' if number % 2 else 'even'}: {'yes' if keep else 'no'}" for number, keep in pairs]
    result = [str(number) for number, keep in pairs if keep]
    if level == 3:
        steps.append(f"Kept: {', '.join(result)}")
    return [str(number) for number, _ in pairs], Stage(f"{verb}-{test}", phrase, steps, result)


def _reversed_source(rng: random.Random, level: int) -> tuple[list[str], Stage]:
    items = rng.sample(WORDS, {1: rng.choice((3, 4)), 2: rng.choice((5, 6)), 3: 6}[level])
    return items, _reverse(rng, items)


def _counted_source(rng: random.Random, level: int) -> tuple[list[str], Stage]:
    """Occurrences of one word, counted up along the list."""
    word, *others = rng.sample(WORDS, 3)
    size = {1: rng.choice((4, 5)), 2: rng.choice((6, 7))}[level]
    items = [word, *(rng.choice((word, *others)) for _ in range(size - 1))]
    rng.shuffle(items)
    steps, count = [], 0
    for item in items:
        count += item == word
        steps.append(f"{item}: {count}")
    phrase = rng.choice((f"count how often {word} occurs", f"count the word {word}", f"say how often {word} occurs"))
    return items, Stage(f"occurrences-{phrase.replace(word, '_')}", phrase, steps, [str(count)])


def _unique_source(rng: random.Random, level: int) -> tuple[list[str], Stage]:
    """Drops every later repeat of a word."""
    size = {1: rng.choice((4, 5)), 2: rng.choice((6, 7)), 3: rng.choice((6, 7))}[level]
    words = rng.sample(WORDS, size - (1 if level == 1 else 2))
    items = [*words, *(rng.choice(words) for _ in range(size - len(words)))]
    rng.shuffle(items)
    result = list(dict.fromkeys(items))
    steps = [f"{item}: {'seen' if item in items[:place] else 'new'}" for place, item in enumerate(items)]
    if level == 3:
        steps.append(f"Kept: {', '.join(result)}")
    phrase = rng.choice(("drop the repeats", "keep each word once", "remove the repeated words"))
    return items, Stage(f"unique-{phrase}", phrase, steps, result)


Source = Callable[[random.Random, int], tuple[list[str], Stage]]
Follower = Callable[[random.Random, Sequence[str]], Stage]
ONE_STAGE: Final[tuple[Source, ...]] = (
    _sorted_source, _filtered_source, _reversed_source, _counted_source, _unique_source,
)  # fmt: skip
TWO_STAGES: Final[tuple[tuple[Source, tuple[Follower, ...]], ...]] = (
    (_filtered_source, (_sort, _sort, _reverse, _count)),
    (_sorted_source, (_pick, _reverse)),
    (_reversed_source, (_pick,)),
    (_unique_source, (_reverse, _count, _pick)),
)
