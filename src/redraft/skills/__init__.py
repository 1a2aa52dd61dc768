"""Verifiable tasks for training, RL and evaluation: six skills, each with generators, levels and a grader.

task = generate(random.Random(0), "test", "math", level=2)
grade(task, task.answer)  # 1.0
"""

from __future__ import annotations

import random
from typing import Final

from redraft.errors import InvalidInput
from redraft.skills.base import SPLITS, Skill, Split, Task, split_of
from redraft.skills.code import Code
from redraft.skills.instructions import Instructions
from redraft.skills.math import Math
from redraft.skills.reasoning import Reasoning
from redraft.skills.structured import Structured
from redraft.skills.tools import Tools

SKILLS: Final[dict[str, Skill]] = {
    skill.name: skill for skill in (Code(), Math(), Structured(), Tools(), Reasoning(), Instructions())
}


def skill_named(name: str) -> Skill:
    """The skill of a name; raises InvalidInput that lists them all for any other."""
    try:
        return SKILLS[name]
    except KeyError:
        raise InvalidInput(f"skill must be one of {', '.join(SKILLS)}, got {name!r}") from None


def generate(rng: random.Random, split: Split, skill: str | None = None, level: int | None = None) -> Task:
    """Draws a task of a split: of one skill or a uniform one, of one level or a uniform one."""
    chosen = rng.choice(tuple(SKILLS.values())) if skill is None else skill_named(skill)
    return chosen.generate(rng, split, level)


def grade(task: Task, response: str) -> float:
    """1.0 if the response is right, else 0.0, by the grader of the task's skill."""
    return skill_named(task.skill).grade(task, response)


__all__ = ["SKILLS", "SPLITS", "Skill", "Split", "Task", "generate", "grade", "skill_named", "split_of"]
