"""Held-out tasks of the skills: drawn once for a seed, and the suite that asks and grades them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from redraft.errors import InvalidInput
from redraft.eval.table import Run
from redraft.eval.task import Item
from redraft.skills import SKILLS, Skill, Split, Task, grade

HeldOut = Literal["seen", "test", "both"]
SPLITS: dict[str, tuple[Split, ...]] = {"seen": ("seen",), "test": ("test",), "both": ("seen", "test")}
SPLIT_NAMES = {"seen": "seen compositions", "test": "unseen compositions"}
TRIES = 1000


class Drawn(NamedTuple):
    """A task and the split that it was drawn from."""

    task: Task
    split: Split


@dataclass(frozen=True)
class SkillSuite:
    """`per_skill` held-out tasks of each of `skills` (empty: of all)."""

    seed: int = 0
    per_skill: int = 200
    split: HeldOut = "both"
    skills: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "skills"

    def items(self) -> list[Item]:
        unknown = set(self.skills) - SKILLS.keys()
        if unknown:
            raise InvalidInput(f"skill must be one of {', '.join(SKILLS)}, got {min(unknown)!r}")
        chosen = {name: SKILLS[name] for name in self.skills} or None
        return [self._item(drawn) for drawn in draw_tasks(self.seed, self.per_skill, self.split, chosen)]

    def grade(self, item: Item, response: str) -> float:
        return grade(Task(**item.reference), response)

    def _item(self, drawn: Drawn) -> Item:
        task = drawn.task
        reference = task.to_dict()
        return Item(
            suite=self.name,
            task=task.skill,
            messages=task.messages,
            tools=task.tools,
            reference=reference,
            level=task.level,
            split=drawn.split,
        )


def draw_tasks(
    seed: int, per_skill: int, split: HeldOut = "both", skills: Mapping[str, Skill] | None = None
) -> list[Drawn]:
    """`per_skill` different prompts of each skill; "both" takes half of them from each held-out split.

    Levels take turns, and skills do, so that any beginning of the list is balanced. A longer list of the same seed
    begins, in each skill and split, with the same tasks. Raises InvalidInput when a level has too few prompts.
    """
    if split not in SPLITS:
        raise InvalidInput(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if isinstance(per_skill, bool) or not isinstance(per_skill, int) or per_skill < 1:
        raise InvalidInput(f"per_skill must be an integer of at least 1, got {per_skill!r}")
    parts = SPLITS[split]
    placed = []
    for place, skill in enumerate((SKILLS if skills is None else skills).values()):
        for part, name in enumerate(parts):
            count = (per_skill + len(parts) - 1 - part) // len(parts)
            tasks = _distinct(skill, random.Random(f"{seed}:{skill.name}:{name}"), name, count)
            placed += [((number, part, place), Drawn(task, name)) for number, task in enumerate(tasks)]
    return [drawn for _, drawn in sorted(placed, key=lambda pair: pair[0])]


def _distinct(skill: Skill, rng: random.Random, split: Split, count: int) -> list[Task]:
    tasks: dict[str, Task] = {}
    for number in range(count):
        level = skill.levels[number % len(skill.levels)]
        for _ in range(TRIES):
            task = skill.generate(rng, split, level)
            if task.prompt not in tasks:
                tasks[task.prompt] = task
                break
        else:
            raise InvalidInput(
                f"per_skill is too large: {skill.name} has too few different prompts of split {split!r} at "
                f"level {level}; {len(tasks)} of {count} were drawn"
            )
    return list(tasks.values())


def about(suite: SkillSuite, items: list[Item], model: str, fingerprint: str, processes: int) -> Run:
    """What the report of this suite says of itself, answered one request at a time in so many processes."""
    counts = Counter(item.split for item in items)
    parts = " and ".join(f"{counts[split]} of {SPLIT_NAMES[split]}" for split in counts)
    side = "one process" if processes == 1 else f"{processes} processes side by side"
    return Run(
        model,
        fingerprint,
        f"item seed {suite.seed}: unseen prompts, {parts}; the levels of each skill in equal shares",
        f"Greedy, one request at a time, float32 on the CPU, {side}, one thread each, of which TPS is that of one.",
        {"seed": suite.seed, "split": suite.split, "processes": processes},
    )
