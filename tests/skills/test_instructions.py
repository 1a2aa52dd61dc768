"""Instructions: each constraint is checked; freedom that the prompt leaves is granted, nothing else."""

from __future__ import annotations

import random
import re

import pytest

from redraft.skills.base import Split, Task
from redraft.skills.instructions import SKILL, Section

DRAWS = 300
PLAIN = Section(("the cat is red", "the dog is red", "the cow is red"), ("cat", "dog", "cow"))


def draw(split: Split, level: int, count: int = DRAWS) -> list[Task]:
    rng = random.Random(f"{split}{level}")
    return [SKILL.generate(rng, split, level) for _ in range(count)]


@pytest.mark.parametrize("level", SKILL.levels)
def test_damaged_answers_are_wrong(level: int) -> None:
    for task in draw("train", level):
        lines = task.answer.splitlines()
        animal = task.reference["sections"][-1]["subjects"][0]
        wrong = (
            lines[0] if len(lines) > 1 else "The", f"{task.answer}\n{lines[-1]}",
            f"{task.answer}\nOf course.", f"Here it is:\n{task.answer}",
            re.sub(animal, "zebra", task.answer, flags=re.IGNORECASE), re.sub("[eE]", "3", task.answer),
            task.answer.replace(" ", "  x "), "[" + task.answer, "\x00" + task.answer,
        )  # fmt: skip
        for response in wrong:
            assert SKILL.grade(task, response) == 0.0, (response[:300], task)


@pytest.mark.parametrize(
    ("change", "right", "wrong"),
    [
        ({}, "A dog is red\nThe cat is red.\nthe cow is red.", "The dog is red.\nThe cat is red.\nThe dog is red."),
        ({"ordered": True}, "The cat is red.\nThe dog is red.\nThe cow is red.",
         "The dog is red.\nThe cat is red.\nThe cow is red."),
        ({"marker": "number"}, "1. The dog is red.\n2. The cat is red.\n3. The cow is red.",
         "1. The dog is red.\n3. The cat is red.\n2. The cow is red."),
        ({"marker": "letter"}, "a) The cat is red.\nb) The dog is red.\nc) The cow is red.",
         "a) The cat is red.\na) The dog is red.\nc) The cow is red."),
        ({"marker": "initial"}, "d: The dog is red.\nc: The cat is red.\nc: The cow is red.",
         "c: The dog is red.\nd: The cat is red.\nc: The cow is red."),
        ({"case": "upper"}, "THE CAT IS RED.\nTHE DOG IS RED.\nTHE COW IS RED.",
         "THE CAT IS RED.\nTHE dOG IS RED.\nTHE COW IS RED."),
        ({"case": "capital"}, "The Cat Is Red.\nThe Dog Is Red.\nThe Cow Is Red.",
         "The Cat Is Red.\nThe dog Is Red.\nThe Cow Is Red."),
        ({"wrap": "brackets"}, "[The cat is red.]\n[The dog is red.]\n[The cow is red].",
         "[The cat is red.]\n(The dog is red.)\n[The cow is red.]"),
        ({"separator": " / "}, "The cat is red / The dog is red/The cow is red",
         "The cat is red\nThe dog is red\nThe cow is red"),
        ({"before": "start", "after": "3"}, "Start\nThe cat is red.\nThe dog is red.\nThe cow is red.\n3",
         "start\nThe cat is red.\nThe dog is red.\nThe cow is red.\n4"),
    ],
)  # fmt: skip
def test_each_constraint(change: dict, right: str, wrong: str) -> None:
    section = Section(**{**vars(PLAIN), **change})
    assert section.accepts(section.render())
    assert section.accepts(right)
    assert not section.accepts(wrong)


@pytest.mark.parametrize("change", [{"marker": "dash"}, {"case": "upper"}, {"wrap": "quotes"}, {"after": "end"}])
def test_plain_text_fails_every_constraint(change: dict) -> None:
    section = Section(**{**vars(PLAIN), **change})
    assert not section.accepts(PLAIN.render())
