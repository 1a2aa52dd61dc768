from __future__ import annotations

import pytest
from synthetic import Synthetic, items_of

from redraft.errors import InvalidInput
from redraft.eval.frontier import CANDIDATES
from redraft.eval.race import gain, speed
from redraft.eval.settings import QUALITY, Setting
from redraft.eval.tune import items_needed, tune


def best_of_the_full_grid(model: Synthetic, items: list, budget: float, confidence: float) -> Setting:
    """The fastest of all settings that pass the same test, on all items."""
    base = model.evaluate([QUALITY], items)
    passed = {QUALITY: base}
    for setting in CANDIDATES:
        records = model.evaluate([setting], items)
        if gain(records, base).low(confidence) >= -budget:
            passed[setting] = records
    return max(passed, key=lambda setting: speed(passed[setting]))


@pytest.mark.parametrize("domain", ["code", "math"])
def test_what_is_found_is_as_good_as_the_full_grid_at_a_third_of_its_cost(domain: str) -> None:
    items = items_of(400, domain)
    model = Synthetic()
    found = tune(domain, items, CANDIDATES, model.evaluate, budget=0.025)
    assert found.setting == Setting(0.4, 0.0) == best_of_the_full_grid(Synthetic(), items, 0.025, 0.95)
    assert model.answers == found.answers <= found.grid / 3
    assert found.grid == 400 * len({QUALITY, *CANDIDATES})
    assert found.low >= -0.025 and found.gain.items == 300
    assert found.speedup == pytest.approx(model.forwards(QUALITY) / model.forwards(found.setting))


def test_a_larger_budget_buys_speed() -> None:
    model, items = Synthetic(), items_of(400)
    found = tune("all", items, CANDIDATES, model.evaluate, budget=0.06)
    assert model.forwards(found.setting) < model.forwards(Setting(0.4, 0.0))
    assert model.quality(found.setting) >= 0.9 - 0.06


def test_when_nothing_passes_the_reference_stays() -> None:
    settings = [Setting(0.3, 0.5), Setting(0.3, "off")]
    found = tune("all", items_of(400), settings, Synthetic().evaluate, budget=0.02)
    assert (found.setting, found.speedup, found.low) == (QUALITY, 1.0, 0.0)
    assert found.about(0.02, 0.95)["reference"] == "0.7/0.5"


def test_the_confidence_holds() -> None:
    """Settings that lose exactly the budget are taken in at most one search of twenty, give or take chance."""
    wrong = 0
    for seed in range(120):
        model, items = Synthetic(0.02), items_of(240, seed=seed)
        model.quality = lambda setting: 0.9 if setting == QUALITY else 0.84  # type: ignore[method-assign]
        settings = [Setting(threshold / 20, 0.0) for threshold in range(4, 12)]
        wrong += tune("all", items, settings, model.evaluate, budget=0.06).setting != QUALITY
    assert wrong <= 12  # of 120 at 5%: above that with probability 0.5%


def test_too_few_items_are_an_error_that_says_how_many() -> None:
    needed = items_needed(0.01, 0.95)
    assert needed == 219
    with pytest.raises(InvalidInput, match="with 218 items of math: at least 219 are needed"):
        tune("math", items_of(218), CANDIDATES, Synthetic().evaluate, budget=0.01)
    same = Synthetic(0.0)
    same.quality = lambda setting: 0.9  # type: ignore[method-assign]
    found = tune("math", items_of(219), CANDIDATES, same.evaluate, budget=0.01)
    assert found.setting != QUALITY, "with so many, a setting that never differs passes"


@pytest.mark.parametrize(("budget", "confidence"), [(0.0, 0.95), (-1.0, 0.95), (1.0, 0.95), (0.01, 0.5), (0.01, 1.0)])
def test_what_can_not_be_asked_for(budget: float, confidence: float) -> None:
    with pytest.raises(InvalidInput, match=r"budget|confidence"):
        tune("all", items_of(400), CANDIDATES, Synthetic().evaluate, budget=budget, confidence=confidence)
