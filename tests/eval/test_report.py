from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from eval_fakes import FakeLLM, record

from redraft.errors import InvalidInput
from redraft.eval.answer import LocalModel
from redraft.eval.records import Record
from redraft.eval.report import grid, markdown, write_report
from redraft.eval.runner import Job, in_batches
from redraft.eval.settings import DRAFT_ONLY, QUALITY, SPEED, SPEED_UNEDITED, STANDARD, SWEEP, Setting
from redraft.eval.skills import SkillSuite
from redraft.eval.table import ALL, Run, Scope, Table, build_table
from redraft.eval.targets import Target, targets
from redraft.skills import SKILLS

RUN = Run("model", "0123", "36 items", "One at a time.", {})
FAST = Setting(0.3, 0.0)


@pytest.fixture(scope="module")
def table() -> Table:
    return build_table(answered(SkillSuite(0, 6), SWEEP), SWEEP, RUN)


def answered(suite: SkillSuite, settings: tuple[Setting, ...]) -> list[Record]:
    items = suite.items()
    work = in_batches(LocalModel(FakeLLM(items), "m"), suite)
    return [record for part in work([Job(item, settings) for item in items]) for record in part]


def test_rows(table: Table) -> None:
    assert [row.setting for row in table.rows if row.scope == ALL] == list(SWEEP)
    for scope, count in (
        (ALL, 36),
        (Scope(split="test"), 18),
        (Scope("code"), 6),
        (Scope("code", "seen"), 3),
        (Scope("code", level=2), 2),
    ):
        assert [row.setting for row in table.rows if row.scope == scope][:4] == list(STANDARD)
        summary = table.summary(QUALITY, scope)
        assert summary is not None and summary.items == count
    assert table.summary(FAST, Scope("code")) is None
    assert table.tasks == list(SKILLS)
    assert table.splits == ["seen", "test"]


def test_differences_are_those_of_the_claims(table: Table) -> None:
    for pair in ((SPEED, SPEED_UNEDITED), (FAST, DRAFT_ONLY), (FAST, QUALITY), (FAST, Setting(0.3))):
        assert table.difference(*pair) is not None
    gain = table.difference(SPEED, SPEED_UNEDITED)
    on, off = table.summary(SPEED), table.summary(SPEED_UNEDITED)
    assert gain is not None and on is not None and off is not None
    assert gain.accuracy.value == pytest.approx(on.accuracy.value - off.accuracy.value)
    ratio = table.difference(FAST, QUALITY)
    assert ratio is not None and ratio.tokens_per_forward_ratio.value == pytest.approx(7 / 3)


def test_report_files(table: Table, tmp_path: Path) -> None:
    content = write_report(table, tmp_path / "report")
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == json.loads(json.dumps(content))
    assert (tmp_path / "report" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "report" / "report.md").read_text()
    assert text == markdown(table)
    for part in ("code, seen compositions", "code, unseen compositions", "S without editing", "36 items"):
        assert part in text
    for skill in SKILLS.values():
        assert all(description.replace("|", "\\|") in text for description in skill.level_descriptions.values())


def test_a_report_of_one_setting_and_split() -> None:
    table = build_table(answered(SkillSuite(0, 1, "seen"), (FAST,)), (FAST,), RUN)
    text = markdown(table)
    assert "| code | 0.3/0 | 1 | 100.0 [" in text
    assert "not measured: needs Q" in text
    assert [target.holds for target in targets(table)][1:] == [None] * 6


def test_a_folder_that_can_not_be_made(table: Table, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write the report"):
        write_report(table, tmp_path / "file")


def test_grid_keeps_its_columns() -> None:
    assert grid(("a", "b"), [("1|2", "3")]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"


def made_up(right: dict[Setting, float], forwards: dict[Setting, int], tokens: Sequence[int] = (40, 80)) -> Table:
    """A table of 1,200 items; each setting is right on a share of the items of each skill and split."""
    records = [
        record(
            item=f"{skill}{number}",
            setting=setting.key,
            task=skill,
            split=("seen", "test")[number % 2],
            score=float(number < 200 * share),
            forwards=forwards[setting],
            tokens=tokens[number % 2],
            blocks=-(-tokens[number % 2] // 32),
        )
        for setting, share in right.items()
        for skill in SKILLS
        for number in range(200)
    ]
    return build_table(records, tuple(right), RUN)


GOOD = {QUALITY: 0.98, DRAFT_ONLY: 0.95, SPEED: 0.97, SPEED_UNEDITED: 0.8}
COST = {QUALITY: 20, DRAFT_ONLY: 30, SPEED: 10, SPEED_UNEDITED: 9}


def verdicts(table: Table) -> list[bool | None]:
    return [target.holds for target in targets(table)]


def test_all_targets_can_hold() -> None:
    assert verdicts(made_up(GOOD, COST)) == [True] * 7


def find(table: Table, words: str) -> Target:
    return next(target for target in targets(table) if words in target.name)


@pytest.mark.parametrize(
    ("right", "forwards", "failing"),
    [
        ({QUALITY: 0.96}, {}, "Q on code"),
        ({QUALITY: 0.84}, {}, "Q over all"),
        ({QUALITY: 0.89}, {}, "Q on structured"),
        ({SPEED: 0.94}, {}, "a point with editing"),  # 4 points below Q
        ({DRAFT_ONLY: 0.975}, {}, "a point with editing"),
        ({}, {SPEED: 15}, "a point with editing"),  # 1.33 times the TPF of Q
        ({SPEED_UNEDITED: 0.97}, {}, "editing beats no editing"),
    ],
)
def test_each_target_can_fail(right: dict[Setting, float], forwards: dict[Setting, int], failing: str) -> None:
    table = made_up(GOOD | right, COST | forwards)
    assert find(table, failing).holds is False


def test_length_target() -> None:
    assert find(made_up(GOOD, COST, tokens=(64, 64)), "median").holds is False
    assert find(made_up(GOOD, COST, tokens=(10, 60)), "median").holds is False
    assert find(made_up(GOOD, COST, tokens=(40, 65)), "median").holds is True


def test_the_point_that_is_reported_is_the_best_that_holds() -> None:
    table = made_up(GOOD | {FAST: 0.96}, COST | {FAST: 8})
    target = find(table, "a point with editing")
    assert target.holds and target.figures.startswith("S (0.5/0): against Q -1.0")
    assert "at 2.00 [2.00, 2.00] times the TPF; against draft-only 0.95 +2.0" in target.figures
