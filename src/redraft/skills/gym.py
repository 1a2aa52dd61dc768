"""A few data sets of reasoning-gym as a skill: its items and scorers behind our `Task` and `grade`.

Only what a tiny model can learn, and only where its scorer can be trusted. Left out after reading and probing them:
`number_sorting` (accepts numbers that are off by one, and evaluates the stored answer as code), `spell_backward`
(a wrong answer that contains the right one scores 0.9999999), `coin_flip` (accepts 0), `sentence_reordering` and
`palindrome_generation` (any text scores above 0), `game_of_life_halting` (accepts garbage), `syllogism` and other
yes-or-no sets (half right by guessing), `leg_counting`, `products`, `gcd` and other arithmetic of many digits
without written steps, `list_functions` (induction), `word_sorting` (rare words).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

from redraft.errors import InvalidInput
from redraft.skills.base import Skill, Task

ACCEPTED: Final = 0.99  # scorers give part marks below
ITEMS: Final = 2**31 - 1  # a data set draws item i from seed + i, so any index below this is an item
MAX_EXTRA: Final = 16  # characters that a response may have beyond twice the right answer
_PROBES: Final = ("", "x", "0", "None", "[]", "{}", "True", "yes")


class Source(NamedTuple):
    """One data set: the arguments of each level, and the structure of an entry for the composition."""

    levels: dict[int, dict[str, Any]]
    structure: Callable[[dict[str, Any]], str]


def _digits_as_shape(entry: dict[str, Any]) -> str:
    return re.sub(r"\d", "d", entry["question"])


def _filtering(entry: dict[str, Any]) -> str:
    meta = entry["metadata"]
    kept = "".join("+" if number in meta["result"] else "-" for number in meta["original_numbers"])
    return f"{meta['operation']}/{kept}"


def _reversal(entry: dict[str, Any]) -> str:
    return "".join("L" if len(word) > 5 else "C" if word[0].isupper() else "s" for word in entry["metadata"]["words"])


def _haystack(entry: dict[str, Any]) -> str:
    names = [sentence.split()[0] for sentence in entry["question"].splitlines()[0].split(". ") if sentence.strip()]
    return f"{len(names)}/{names.index(entry['answer'])}/{entry['metadata']['question'].split()[1]}"


def _sizes(low: str, high: str, sizes: tuple[tuple[int, int], ...], **fixed: Any) -> dict[int, dict[str, Any]]:
    return {level: {low: least, high: most, **fixed} for level, (least, most) in enumerate(sizes, 1)}


SOURCES: Final = {
    "number_filtering": Source(
        _sizes(
            "min_numbers", "max_numbers", ((3, 4), (5, 6), (7, 8)),
            min_decimals=0, max_decimals=0, min_value=10, max_value=99,
        ),
        _filtering,
    ),
    "word_sequence_reversal": Source(_sizes("min_words", "max_words", ((3, 4), (5, 6), (7, 8))), _reversal),
    "chain_sum": Source(
        _sizes("min_terms", "max_terms", ((2, 2), (3, 3), (4, 5)), min_digits=1, max_digits=1), _digits_as_shape
    ),
    "basic_arithmetic": Source(
        _sizes(
            "min_terms", "max_terms", ((2, 2), (3, 3), (4, 5)),
            min_digits=1, max_digits=1, allow_parentheses=False, operators=("+", "-"),
        ),
        _digits_as_shape,
    ),
    "needle_haystack": Source(
        _sizes("min_num_statements", "max_num_statements", ((2, 3), (4, 5), (6, 8))), _haystack
    ),
}  # fmt: skip


@cache
def dataset(name: str, level: int) -> Any:
    """The data set of a level; needs the optional package reasoning-gym."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise InvalidInput(
            "skill 'gym' needs the package reasoning-gym, which is not installed: pip install 'redraft[train]'"
        ) from error
    return reasoning_gym.create_dataset(name, seed=0, size=ITEMS, **SOURCES[name].levels[level])


def trusted(scorer: Callable[[str, dict[str, Any]], float], entry: dict[str, Any]) -> bool:
    """Whether a scorer accepts an entry's own answer and none of several wrong ones made from it."""
    answer = str(entry["answer"])
    wrong = {*_PROBES, f"{answer} or not", f"not {answer}", answer * 2, answer[:-1], answer[::-1]}
    for place in (match.start() for match in re.finditer(r"\d", answer)):
        wrong.add(f"{answer[:place]}{(int(answer[place]) + 1) % 10}{answer[place + 1 :]}")
    wrong = {probe for probe in wrong if probe.strip() != answer}
    return scorer(answer, entry) >= ACCEPTED and all(scorer(probe, entry) < ACCEPTED for probe in wrong)


class Gym(Skill):
    """Filtering, reversing, short sums and look-ups, as reasoning-gym words and scores them."""

    name: ClassVar[str] = "gym"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "filter or reverse 3-4 items, sums of 2 digits, look-up among 2-3 sentences",
        2: "filter or reverse 5-6 items, sums of 3 digits, look-up among 4-5 sentences",
        3: "filter or reverse 7-8 items, sums of 4-5 digits, look-up among 6-8 sentences",
    }

    def sample(self, rng: random.Random, level: int) -> Task:
        name = rng.choice(tuple(SOURCES))
        items = dataset(name, level)
        entry = items[rng.randrange(ITEMS)]
        while not trusted(items.score_answer, entry):
            entry = items[rng.randrange(ITEMS)]
        return Task(
            skill=self.name,
            level=level,
            prompt=entry["question"].strip(),
            answer=entry["answer"],
            composition=f"{level}/{name}/{SOURCES[name].structure(entry)}",
            reference={"dataset": name, "entry": entry},
        )

    def grade(self, task: Task, response: str) -> float:
        name, entry = task.reference["dataset"], task.reference["entry"]
        given = response.strip().rpartition("Answer:")[2].strip()
        if not given or len(response) > 2 * len(entry["answer"]) + MAX_EXTRA:
            return 0.0
        return float(dataset(name, task.level).score_answer(given, entry) >= ACCEPTED)


SKILL: Final = Gym()
