from __future__ import annotations

from collections import Counter

import pytest
from eval_fakes import FakeLLM

from redraft.errors import InvalidInput
from redraft.eval import runner, skills
from redraft.eval.answer import LocalModel
from redraft.eval.quick import quick_accuracy
from redraft.eval.records import Record
from redraft.eval.runner import Job, in_batches
from redraft.eval.settings import QUALITY, SPEED, SPEED_UNEDITED, Setting
from redraft.eval.skills import SkillSuite, draw_tasks
from redraft.eval.task import Item
from redraft.skills import SKILLS, split_of


def answer(item: Item, settings: tuple[Setting, ...], suite: SkillSuite) -> list[Record]:
    work = in_batches(LocalModel(FakeLLM([item]), "model"), suite)
    return [record for part in work([Job(item, settings)]) for record in part]


def test_tasks_are_held_out_balanced_and_different() -> None:
    drawn = draw_tasks(seed=3, per_skill=12)
    assert Counter(task.skill for task, _ in drawn) == dict.fromkeys(SKILLS, 12)
    assert Counter(split for _, split in drawn) == {"seen": 36, "test": 36}
    assert Counter((task.skill, task.level) for task, _ in drawn) == {
        (skill.name, level): 4 for skill in SKILLS.values() for level in skill.levels
    }
    assert all(split_of(task.composition, task.prompt) == split for task, split in drawn)
    assert len({task.prompt for task, _ in drawn}) == len(drawn)
    items = SkillSuite(3, 12).items()
    assert len({item.key for item in items}) == len(items) == len(drawn)
    assert [(item.prompt, item.split, item.level) for item in items] == [
        (task.prompt, split, task.level) for task, split in drawn
    ]


def test_a_beginning_is_balanced() -> None:
    drawn = draw_tasks(seed=3, per_skill=12)[:24]
    assert Counter(task.skill for task, _ in drawn) == dict.fromkeys(SKILLS, 4)
    assert Counter(split for _, split in drawn) == {"seen": 12, "test": 12}


def test_items_are_a_function_of_the_seed_and_grow_with_the_count() -> None:
    few, many = (SkillSuite(3, count, "test").items() for count in (3, 6))
    assert SkillSuite(3, 3, "test").items() == few
    assert {item.key for item in few} <= {item.key for item in many}
    assert not {item.key for item in few} & {item.key for item in SkillSuite(4, 3, "test").items()}


def test_skills_can_be_chosen() -> None:
    assert {item.task for item in SkillSuite(0, 2, "seen", ("math",)).items()} == {"math"}
    with pytest.raises(InvalidInput, match="skill must be one of code"):
        SkillSuite(skills=("poetry",)).items()


def test_an_odd_count_goes_to_the_seen_split() -> None:
    one = {"math": SKILLS["math"]}
    assert Counter(split for _, split in draw_tasks(0, 5, "both", one)) == {"seen": 3, "test": 2}


@pytest.mark.parametrize(("per_skill", "split"), [(0, "both"), (-1, "both"), (True, "both"), (2, "train")])
def test_what_can_not_be_drawn(per_skill: int, split: str) -> None:
    with pytest.raises(InvalidInput):
        draw_tasks(0, per_skill, split)  # type: ignore[arg-type]


def test_too_few_prompts_are_an_error_that_names_the_skill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "TRIES", 0)
    with pytest.raises(InvalidInput, match="code has too few"):
        draw_tasks(0, 1)


def test_an_answer_is_graded_and_counted() -> None:
    suite = SkillSuite(0, 1, "seen", ("code",))
    item = suite.items()[0]
    right, wrong = answer(item, (SPEED, Setting(0.0, "off")), suite)
    assert right.key == ("model", item.key, "0.5/0")
    assert (right.score, wrong.score) == (1.0, 0.0)
    assert (right.tokens, right.forwards, right.blocks, right.edits) == (70, 5, 3, 7)
    assert (right.prompt, right.response, wrong.response) == (item.prompt, item.reference["answer"], "no")


def test_equal_answers_are_graded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = SkillSuite(0, 1, "seen", ("math",))
    item = suite.items()[0]
    counted = []

    def counting(suite, item, response):
        counted.append(response)
        return 1.0, ""

    monkeypatch.setattr(runner, "graded", counting)
    records = answer(item, (SPEED, QUALITY, Setting(0.3, 0.0)), suite)
    assert counted == [item.reference["answer"]]
    assert [record.score for record in records] == [1.0, 1.0, 1.0]


def test_quick_accuracy() -> None:
    llm = FakeLLM(SkillSuite(5, 2, "seen").items())
    figures = quick_accuracy(llm, n=12, seed=5, settings=(SPEED, SPEED_UNEDITED))
    assert figures["S"]["accuracy"] == 1.0
    assert figures["S"]["tokens_per_forward"] == 14.0
    unedited = figures["S without editing"]
    assert unedited["accuracy"] < 1.0
    assert unedited["accuracy"] == pytest.approx(sum(unedited[skill] for skill in SKILLS) / len(SKILLS))
    some = quick_accuracy(llm, n=4, seed=5, settings=(SPEED,), skills=("math", "tools"))
    assert some["S"].keys() & SKILLS.keys() == {"math", "tools"}
