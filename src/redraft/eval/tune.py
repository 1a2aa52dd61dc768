"""The fastest setting that costs no more quality than allowed, for each domain.

A quarter of a domain's items chooses a few candidates (`race`), the others decide. There the candidates are tested one
after the other, the surest first, until one fails (a fixed sequence, so that each test has the whole confidence:
Maurer, Hothorn and Lehmacher 1995): every setting that passed loses at most the budget, with this confidence for all of
them together, and the fastest is taken. When none passes, the reference itself is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from redraft.errors import InvalidInput
from redraft.eval.race import Evaluate, Gain, by_expected_speed, gain, race, speed
from redraft.eval.records import Record
from redraft.eval.settings import QUALITY, Setting
from redraft.eval.task import Item

RACED = 4  # one item of so many chooses, the others decide
FIRST = 1 / 8
SEED = 0
FINALISTS = 4


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was chosen for a domain. gain: of its score over the reference's, on the items that decide; low: what it is
    at least, at the confidence. speedup: TPF over the reference's, on the same items. tested: how many settings were.
    answers: how many the search took; grid: how many all candidates on all items would have taken."""

    domain: str
    setting: Setting
    reference: Setting
    gain: Gain
    low: float
    speedup: float
    tested: int
    answers: int
    grid: int

    def about(self, budget: float, confidence: float) -> dict[str, Any]:
        """For the file of modes."""
        return {
            "domain": self.domain,
            "budget_points": 100 * budget,
            "confidence": confidence,
            "reference": self.reference.key,
            "score_difference_points": round(100 * self.gain.mean, 2),
            "score_difference_at_least_points": round(100 * self.low, 2),
            "tokens_per_forward_ratio": round(self.speedup, 3),
            "items": self.gain.items,
        }


def items_needed(budget: float, confidence: float) -> int:
    """Items of a domain with which a setting that never differs from the reference can pass."""
    deciding = math.ceil(NormalDist().inv_cdf(confidence) / budget) - 2
    return math.ceil(deciding * RACED / (RACED - 1)) + 1


def require_items(domain: str, count: int, budget: float, confidence: float) -> None:
    """Raises InvalidInput when so few items of a domain can't show anything."""
    needed = items_needed(budget, confidence)
    if count < needed:
        raise InvalidInput(
            f"a loss of at most {100 * budget:g} points can't be shown at confidence {confidence:g} with {count} "
            f"items of {domain}: at least {needed} are needed, or a larger budget"
        )


def tune(
    domain: str,
    items: Sequence[Item],
    candidates: Sequence[Setting],
    evaluate: Evaluate,
    *,
    budget: float,
    confidence: float = 0.95,
    reference: Setting = QUALITY,
) -> Tuned:
    """budget: of the loss, as a share of the score. items: of the domain.

    Raises InvalidInput when there are too few items to show anything.
    """
    if not 0 < budget < 1:
        raise InvalidInput(f"budget must be above 0 and below 100 points, got {100 * budget:g}")
    if not 0.5 < confidence < 1:
        raise InvalidInput(f"confidence must be above 0.5 and below 1, got {confidence!r}")
    require_items(domain, len(items), budget, confidence)
    shuffled = random.Random(SEED).sample(items, len(items))
    chosen, deciding = shuffled[: len(items) // RACED], shuffled[len(items) // RACED :]
    rank = by_expected_speed(reference, budget)
    raced = race((reference, *candidates), chosen, evaluate, rank, keep=1 + FINALISTS, first=FIRST)
    base = evaluate([reference], deciding)
    started = raced.answers[reference]
    finalists = [
        setting
        for setting in raced.survivors[: 1 + FINALISTS]
        if setting != reference and speed(raced.answers[setting]) > speed(started)
    ]
    finalists.sort(key=lambda setting: gain(raced.answers[setting], started).above(-budget), reverse=True)
    passed: dict[Setting, Sequence[Record]] = {reference: base}
    tested = 0
    for setting in finalists:
        tested += 1
        records = evaluate([setting], deciding)
        if gain(records, base).low(confidence) < -budget:
            break
        passed[setting] = records
    best = max(passed, key=lambda setting: speed(passed[setting]))
    found = Gain(0.0, 0.0, len(base)) if best == reference else gain(passed[best], base)
    return Tuned(
        domain=domain,
        setting=best,
        reference=reference,
        gain=found,
        low=0.0 if best == reference else found.low(confidence),
        speedup=speed(passed[best]) / speed(base),
        tested=tested,
        answers=raced.cost + len(deciding) * (1 + tested),
        grid=len(raced.answers) * len(items),
    )
