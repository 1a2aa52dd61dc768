from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from eval_fakes import record
from synthetic import Synthetic, items_of

from redraft.errors import InvalidInput
from redraft.eval.frontier import CANDIDATES, content, draw, find, markdown, write
from redraft.eval.race import by_front, front, gain, race, sizes
from redraft.eval.records import Record
from redraft.eval.settings import Setting


def scores(values: Sequence[float | None]) -> list[Record]:
    return [record(item=str(number), score=value) for number, value in enumerate(values)]


def test_a_gain_of_equal_settings_is_not_certain() -> None:
    few, many = (gain(scores([1.0] * n), scores([1.0] * n)) for n in (3, 163))
    assert few.mean == many.mean == 0.0
    assert few.low(0.95) < -0.3 and many.low(0.95) == pytest.approx(-0.00997, abs=1e-5)


def test_a_gain_is_that_of_agresti_and_min() -> None:
    found = gain(scores([1.0] * 30 + [0.0] * 10 + [1.0] * 60), scores([0.0] * 30 + [1.0] * 10 + [1.0] * 60))
    b, c, n = 30.5, 10.5, 102
    assert found.mean == pytest.approx((b - c) / n)
    assert found.error == pytest.approx(((b + c) - (b - c) ** 2 / n) ** 0.5 / n)


def test_only_pairs_with_two_scores_count() -> None:
    assert gain(scores([1.0, None, 1.0]), scores([1.0, 1.0])).items == 1


@pytest.mark.parametrize(
    ("count", "first", "expected"),
    [(200, 1 / 16, [12, 24, 48, 96, 192, 200]), (10, 1 / 16, [4, 8, 10]), (3, 1 / 2, [3]), (8, 1.0, [8])],
)
def test_rounds(count: int, first: float, expected: list[int]) -> None:
    assert sizes(count, first) == expected


def test_a_race_asks_the_better_half_on() -> None:
    model, items = Synthetic(0.0), items_of(64)
    settings = [Setting(threshold / 100, "off") for threshold in range(10, 100, 10)]
    found = race(settings, items, model.evaluate, by_front, keep=2, first=1 / 8)
    assert sorted(len(records) for records in found.answers.values()) == [8] * 4 + [16] * 2 + [32] * 1 + [64] * 2
    assert found.cost == model.answers == 224
    assert len(found.survivors) == 2


def test_a_front_has_what_nothing_beats() -> None:
    def of(score: float, forwards: int) -> list[Record]:
        return [record(item=str(i), score=float(i < 100 * score), tokens=100, forwards=forwards) for i in range(100)]

    points = {
        Setting(0.1): of(0.5, 10),
        Setting(0.2): of(0.7, 20),
        Setting(0.3): of(0.6, 25),  # slower and worse than the one before
        Setting(0.4): of(0.7, 30),  # slower
        Setting(0.5): of(0.9, 40),
    }
    assert front(points) == [Setting(0.1), Setting(0.2), Setting(0.5)]
    assert by_front(points)[-1] == Setting(0.3)


def test_the_known_front_is_found_at_a_third_of_the_grid() -> None:
    model, items = Synthetic(), items_of(240)
    found = find(CANDIDATES, items, model.evaluate)
    assert found.answers == model.answers <= found.grid / 3
    assert found.grid == 240 * len(set(CANDIDATES))
    best = [point.setting for point in found.points if point.on_front]
    # What is right on it: free edits at their knee are as good as anything, and faster than all that is.
    assert Setting(0.4, 0.0) in best
    fastest = max(point.summary.tokens_per_forward for point in found.points if point.on_front)
    assert fastest > 200 / model.forwards(Setting(0.4, 0.0)), "and there is something faster and worse"
    for point in found.points:
        if point.on_front and point.setting != Setting(0.4, 0.0):
            assert model.quality(point.setting) < 0.9 or point.setting.mbe_blocks == 0


def test_the_frontier_is_written(tmp_path: Path) -> None:
    found = find([Setting(0.3, "off"), Setting(0.9, "off"), Setting(0.9, 0.0)], items_of(16), Synthetic().evaluate)
    write(found, "A model.", tmp_path)
    text = (tmp_path / "frontier.md").read_text()
    assert text == markdown(found, "A model.") and "| yes | 0.3/off | 16 |" in text
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert content(found)["points"][0]["fields"] == {"threshold": 0.3, "edit_threshold": "off"}
    draw(found, tmp_path / "again.png")
    with pytest.raises(InvalidInput, match="cannot write the frontier"):
        write(found, "", tmp_path / "frontier.md" / "below")


def test_one_setting_is_no_frontier() -> None:
    with pytest.raises(InvalidInput, match="at least two"):
        find([Setting(0.3), Setting(0.3)], items_of(4), Synthetic().evaluate)
