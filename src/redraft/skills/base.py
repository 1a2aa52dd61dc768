"""Verifiable tasks: what a skill is, and how its prompts are split into training and held-out ones.

A *composition* is the shape of a task: which phrasing, which operations in which order, which fields. A *prompt*
is a composition with its values filled in. Both are split by a hash of their own text, so that the split needs no
files and can't leak:

    train   compositions and prompts that training may see
    seen    compositions of training, prompts that training never sees
    test    compositions that training never sees
"""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from redraft.errors import InvalidInput

Split = Literal["train", "seen", "test"]
SPLITS: tuple[Split, ...] = ("train", "seen", "test")


@dataclass(frozen=True)
class Task:
    """One verifiable task.

    prompt: the user's message. answer: a right response, the target of training.
    composition: the key that the split goes by. reference: whatever the grader needs, JSON-able.
    tools: OpenAI function schemas offered with the prompt.
    """

    skill: str
    level: int
    prompt: str
    answer: str
    composition: str
    reference: dict[str, Any] = field(default_factory=dict)
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def split_of(composition: str, prompt: str) -> Split:
    """The split that a task belongs to: one composition in eight is held out, and one prompt in sixteen."""
    if zlib.crc32(f"composition:{composition}".encode()) % 8 == 0:
        return "test"
    return "seen" if zlib.crc32(f"prompt:{prompt}".encode()) % 16 == 0 else "train"


class Skill(ABC):
    """A family of tasks with one grader. `level_descriptions` says what each level asks."""

    name: ClassVar[str]
    level_descriptions: ClassVar[dict[int, str]]

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(self.level_descriptions)

    @abstractmethod
    def sample(self, rng: random.Random, level: int) -> Task:
        """Draws any task of a level; every draw comes from `rng`."""

    @abstractmethod
    def grade(self, task: Task, response: str) -> float:
        """1.0 for a right response, 0.0 for any other; never raises on what a model may write."""

    def generate(self, rng: random.Random, split: Split, level: int | None = None) -> Task:
        """Draws a task of one split (and level, else a uniform one) by rejection."""
        if split not in SPLITS:
            raise InvalidInput(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if level is not None and level not in self.levels:
            raise InvalidInput(f"{self.name} level must be one of {self.levels}, got {level!r}")
        for _ in range(10_000):
            task = self.sample(rng, rng.choice(self.levels) if level is None else level)
            if split_of(task.composition, task.prompt) == split:
                return task
        raise InvalidInput(f"{self.name} has no tasks of split {split!r} at level {level!r}")
