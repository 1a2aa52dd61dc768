"""Racing: many settings on few items, the promising ones on more (successive halving, Jamieson and Talwalkar 2016),
always on the same items, so that settings are compared item by item.

A setting's gain over another has the interval of Agresti and Min (2005) for paired proportions, which pretends one more
item on which the first is right alone, one half counted, and as much the other way: without it, two settings that
agree on three items would look equal for certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from redraft.eval.records import Record
from redraft.eval.settings import Setting
from redraft.eval.statistics import paired
from redraft.eval.task import Item

Answers = Mapping[Setting, Sequence[Record]]
Evaluate = Callable[[Sequence[Setting], Sequence[Item]], list[Record]]
"""The records of all these items at all these settings; those that are known cost nothing."""
Rank = Callable[[Answers], list[Setting]]
"""The settings of a round, the most promising first."""
CLEAREST = 50.0  # standard errors


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better one setting scores than another on the same items: mean and standard error, from -1 to 1."""

    mean: float
    error: float
    items: int

    def low(self, confidence: float) -> float:
        """What the gain is at least, at this one-sided confidence."""
        return self.mean - NormalDist().inv_cdf(confidence) * self.error

    def above(self, border: float) -> float:
        """By how many standard errors it is above a border."""
        return max(-CLEAREST, min(CLEAREST, (self.mean - border) / self.error))


@dataclass(frozen=True)
class Race:
    """answers: of every setting, on as many items as it saw. survivors: those that saw all, best rank first."""

    answers: Answers
    survivors: tuple[Setting, ...]

    @property
    def cost(self) -> int:
        """Answers that were made."""
        return sum(len(records) for records in self.answers.values())


def gain(first: Sequence[Record], second: Sequence[Record]) -> Gain:
    """Of the first over the second. Items without two scores are left out."""
    pairs = paired(first, second)
    gains = [a.score - b.score for a, b in pairs if a.score is not None and b.score is not None]
    n = len(gains) + 2
    mean = sum(gains) / n
    variance = (sum(each * each for each in gains) + 1) / n - mean * mean
    return Gain(mean, math.sqrt(variance / n), len(gains))


def speed(records: Sequence[Record]) -> float:
    """Tokens per forward; tokens per second where forwards aren't known."""
    tokens, forwards = sum(r.tokens for r in records), sum(r.forwards for r in records)
    return tokens / (forwards or sum(r.seconds for r in records) or 1.0)


def race(
    candidates: Sequence[Setting], items: Sequence[Item], evaluate: Evaluate, rank: Rank, *, keep: int, first: float
) -> Race:
    """All candidates on the first `first` of the items, the better half of them on twice as many, and so on, until all
    items were seen; at least `keep` settings stay. `rank` sees the settings that are still in the race."""
    answers: dict[Setting, list[Record]] = {}
    alive = list(dict.fromkeys(candidates))
    for size in sizes(len(items), first):
        records = evaluate(alive, items[:size])
        for setting in alive:
            answers[setting] = [record for record in records if record.setting == setting.key]
        alive = rank({setting: answers[setting] for setting in alive})
        if size < len(items):
            alive = alive[: max(keep, -(-len(alive) // 2))]
    return Race(answers, tuple(alive))


def sizes(count: int, first: float) -> list[int]:
    """Items of each round: a share, at least 4, doubled up to all."""
    out = [min(count, max(4, round(count * first)))]
    while out[-1] < count:
        out.append(min(count, 2 * out[-1]))
    return out


def by_front(answers: Answers) -> list[Setting]:
    """The less clearly a setting is beaten, by one as fast or faster, the better; then the faster."""
    speeds = {setting: speed(records) for setting, records in answers.items()}

    def beaten(setting: Setting) -> float:
        faster = [other for other in answers if other != setting and speeds[other] >= speeds[setting]]
        return max((gain(answers[other], answers[setting]).above(0.0) for other in faster), default=-CLEAREST)

    return sorted(answers, key=lambda setting: (beaten(setting), -speeds[setting]))


def by_expected_speed(reference: Setting, budget: float) -> Rank:
    """The expected speed when each setting is taken if its loss against the reference is within the budget (a share of
    the score), and the reference if not. The reference itself is not ranked."""

    def rank(answers: Answers) -> list[Setting]:
        base = answers[reference]

        def expected(setting: Setting) -> float:
            safe = NormalDist().cdf(gain(answers[setting], base).above(-budget))
            return 1 + safe * (speed(answers[setting]) / speed(base) - 1)

        return [reference, *sorted((each for each in answers if each != reference), key=expected, reverse=True)]

    return rank


def front(answers: Answers) -> list[Setting]:
    """The settings that no other one beats in both score and speed, by what was measured; the fastest first."""
    points = {each: (speed(records), _score(records)) for each, records in answers.items()}
    ordered = sorted(points, key=lambda setting: (-points[setting][0], -points[setting][1]))
    out: list[Setting] = []
    for setting in ordered:
        if not out or points[setting][1] > points[out[-1]][1]:
            out.append(setting)
    return out


def _score(records: Sequence[Record]) -> float:
    scores = [record.score for record in records if record.score is not None]
    return sum(scores) / len(scores) if scores else 0.0
