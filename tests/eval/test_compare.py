from __future__ import annotations

from pathlib import Path

import pytest
from eval_fakes import record

from redraft.errors import InvalidInput
from redraft.eval.compare import compare_runs, content, load, markdown, p_value
from redraft.eval.records import Record, RecordLog


def run_of(scores: list[float | None], setting: str = "0.5/0", task: str = "code", forwards: int = 10) -> list[Record]:
    common = {"task": task, "setting": setting, "forwards": forwards}
    return [record(item=f"{task}{number}", score=score, **common) for number, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("gains", "p"),
    [
        ([], 1.0),
        ([0, 0, 0], 1.0),
        ([1], 1.0),
        ([1] * 5, 2 / 32),
        ([1] * 8 + [-1] * 2 + [0] * 90, 2 * (1 + 10 + 45) / 1024),
        ([-1] * 8 + [1] * 2, 2 * (1 + 10 + 45) / 1024),
    ],
)
def test_p_is_that_of_the_exact_test(gains: list[int], p: float) -> None:
    assert p_value(gains) == pytest.approx(p)


def test_p_of_parts_is_that_of_random_swaps() -> None:
    assert p_value([0.5] * 5) == pytest.approx(2 / 32, abs=0.01)
    assert p_value([0.5, -0.5] * 10) == 1.0
    assert p_value([0.5] * 40) < 0.001


def test_runs_are_compared_setting_by_setting_and_task_by_task() -> None:
    first = run_of([0, 0, 0, 1]) + run_of([1, 1], task="math") + run_of([1], setting="0.7/0.5")
    second = run_of([1, 1, 1, 1], forwards=5) + run_of([1, 0], task="math") + run_of([1], setting="0.9/off")
    rows = compare_runs(first, second)
    assert [(row.task, row.setting, row.difference.items, row.changed) for row in rows] == [
        ("all", "0.5/0", 6, 4),
        ("code", "0.5/0", 4, 3),
        ("math", "0.5/0", 2, 1),
    ]
    assert rows[1].difference.accuracy.value == pytest.approx(0.75)
    assert rows[1].difference.tokens_per_forward_ratio.value == pytest.approx(2.0)
    assert rows[1].p == pytest.approx(2 / 8)
    assert "| math | 0.5/0 | 2 | -50.0 [" in markdown(rows, ("a", "b"))
    assert content(rows)[0]["difference"]["items"] == 6


def test_only_items_of_both_with_two_scores_count() -> None:
    rows = compare_runs(run_of([1, None, 0, 1]), run_of([1, 1, None]))
    assert rows[0].difference.items == 1
    with pytest.raises(InvalidInput, match="no item that both answered"):
        compare_runs(run_of([None]), run_of([1]))


def test_two_settings() -> None:
    first, second = run_of([0, 1], "0.7/0.5"), run_of([1, 1], "0.5/0")
    assert compare_runs(first, second)[0].setting == "0.7/0.5 → 0.5/0"  # the only ones
    both = first + second
    assert compare_runs(both, both, ("0.5/0", "0.7/0.5"))[0].difference.accuracy.value == -0.5
    with pytest.raises(InvalidInput, match="no setting in common"):
        compare_runs(both, run_of([1], "0.9/off"))


def test_runs_are_read_from_their_folders(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "records.jsonl") as log:
        log.add(run_of([1, 0]))
    assert load(tmp_path) == load(tmp_path / "records.jsonl") == run_of([1, 0])
    with RecordLog(tmp_path / "records.jsonl") as log:
        log.add([record(model="other")])
    with pytest.raises(InvalidInput, match="one model, and has those of 2"):
        load(tmp_path)
    with pytest.raises(InvalidInput, match="cannot read"):
        load(tmp_path / "nothing")
