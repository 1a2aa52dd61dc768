from __future__ import annotations

from collections import Counter

import pytest
from eval_fakes import FakeLLM

from redraft.errors import InvalidInput
from redraft.eval import skills
from redraft.eval.quick import quick_accuracy
from redraft.eval.settings import QUALITY, SPEED, SPEED_UNEDITED, Setting
from redraft.eval.skills import Item, answer, draw_items
from redraft.skills import SKILLS, grade, split_of


def test_items_are_held_out_balanced_and_different() -> None:
    items = draw_items(seed=3, per_skill=12)
    assert Counter(item.task.skill for item in items) == dict.fromkeys(SKILLS, 12)
    assert Counter(item.split for item in items) == {"seen": 36, "test": 36}
    assert Counter((item.task.skill, item.task.level) for item in items) == {
        (skill.name, level): 4 for skill in SKILLS.values() for level in skill.levels
    }
    assert all(split_of(item.task.composition, item.task.prompt) == item.split for item in items)
    assert len({item.task.prompt for item in items}) == len({item.key for item in items}) == len(items)


def test_a_beginning_is_balanced() -> None:
    items = draw_items(seed=3, per_skill=12)[:24]
    assert Counter(item.task.skill for item in items) == dict.fromkeys(SKILLS, 4)
    assert Counter(item.split for item in items) == {"seen": 12, "test": 12}


def test_items_are_a_function_of_the_seed_and_grow_with_the_count() -> None:
    few, many = (draw_items(seed=3, per_skill=count, split="test") for count in (3, 6))
    assert draw_items(seed=3, per_skill=3, split="test") == few
    assert {item.key for item in few} <= {item.key for item in many}
    assert not {item.key for item in few} & {item.key for item in draw_items(seed=4, per_skill=3, split="test")}


def test_an_odd_count_goes_to_the_seen_split() -> None:
    one = {"math": SKILLS["math"]}
    assert Counter(item.split for item in draw_items(0, 5, "both", one)) == {"seen": 3, "test": 2}


@pytest.mark.parametrize(("per_skill", "split"), [(0, "both"), (-1, "both"), (True, "both"), (2, "train")])
def test_what_can_not_be_drawn(per_skill: int, split: str) -> None:
    with pytest.raises(InvalidInput):
        draw_items(0, per_skill, split)  # type: ignore[arg-type]


def test_too_few_prompts_are_an_error_that_names_the_skill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "TRIES", 0)
    with pytest.raises(InvalidInput, match="code has too few"):
        draw_items(0, 1)


def test_an_answer_is_graded_and_counted() -> None:
    item = Item.of(draw_items(0, 1, "seen", {"code": SKILLS["code"]})[0].task, "seen")
    unsure = Setting(0.0, "off")
    right, wrong = answer(FakeLLM([item]), "model", item, (SPEED, unsure))
    assert right.key == ("model", item.key, "0.5/0")
    assert (right.score, wrong.score) == (1.0, 0.0)
    assert (right.tokens, right.forwards, right.blocks, right.edits) == (70, 5, 3, 7)
    assert (right.prompt, right.response, wrong.response) == (item.task.prompt, item.task.answer, "no")


def test_equal_answers_are_graded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    item = draw_items(0, 1, "seen", {"math": SKILLS["math"]})[0]
    graded = []

    def counting(task, response):
        graded.append(response)
        return grade(task, response)

    monkeypatch.setattr(skills, "grade", counting)
    records = answer(FakeLLM([item]), "model", item, (SPEED, QUALITY, Setting(0.3, 0.0)))
    assert graded == [item.task.answer]
    assert [record.score for record in records] == [1.0, 1.0, 1.0]


def test_quick_accuracy() -> None:
    llm = FakeLLM(draw_items(5, 2, "seen"))
    figures = quick_accuracy(llm, n=12, seed=5, settings=(SPEED, SPEED_UNEDITED))
    assert figures["S"]["accuracy"] == 1.0
    assert figures["S"]["tokens_per_forward"] == 14.0
    unedited = figures["S without editing"]
    assert unedited["accuracy"] < 1.0
    assert unedited["accuracy"] == pytest.approx(sum(unedited[skill] for skill in SKILLS) / len(SKILLS))
    some = quick_accuracy(FakeLLM(draw_items(5, 2, "seen")), n=4, seed=5, settings=(SPEED,), skills=("math", "tools"))
    assert some["S"].keys() & SKILLS.keys() == {"math", "tools"}
