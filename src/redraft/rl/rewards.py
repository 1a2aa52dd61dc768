"""Rewards: functions (prompt, response, reference) -> float, and how they are put together.

correct   1 for a right response (skills run code in their sandbox), by the skill's own grader
format    1 for a response that ended by itself and has the form that its grader reads
overlong  0 up to `overlong_from` tokens, falling to -1 at `overlong_to` (Yu et al. 2025, arXiv 2503.14476, eq. 13)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redraft.errors import ConfigError
from redraft.rl.environment import Answer, Turn
from redraft.skills import grade
from redraft.skills.base import Task
from redraft.skills.code import program
from redraft.skills.math import ANSWER

RewardFunction = Callable[[str, str, Any], float]


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Weights of the pieces. overlong_from, overlong_to: tokens between which an answer's length is punished."""

    correct: float = 1.0
    format: float = 0.0
    overlong: float = 0.0
    overlong_from: int = 128
    overlong_to: int = 256

    def __post_init__(self) -> None:
        for name in ("correct", "format", "overlong"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"reward.{name} must be a number of at least 0, got {getattr(self, name)}")
        if not self.correct + self.format > 0:
            raise ConfigError("reward.correct and reward.format can't both be 0")
        if not 0 <= self.overlong_from < self.overlong_to:
            raise ConfigError(
                f"reward.overlong_from must be at least 0 and below overlong_to, got {self.overlong_from} and "
                f"{self.overlong_to}"
            )


def skill_correct(prompt: str, response: str, task: Task) -> float:
    """1.0 for a right response to a skill's task, else 0.0."""
    return grade(task, response)


def skill_format(prompt: str, response: str, task: Task) -> float:
    """1.0 if the response has the form that the skill's grader reads, where a skill has one beyond plain text."""
    check = FORMS.get(task.skill)
    return 1.0 if check is None else float(check(response, task))


def overlong(tokens: int, start: int, end: int) -> float:
    """0 up to `start` tokens, -1 from `end` on, linear between them."""
    return -min(1.0, max(0.0, (tokens - start) / (end - start)))


def shaped(
    config: RewardConfig,
    prompt: str,
    answer: Answer,
    reference: Any,
    *,
    correct: RewardFunction,
    form: RewardFunction | None = None,
) -> Turn:
    """The last turn of an episode with its pieces weighed; those of no weight aren't computed, but for `correct`."""
    parts: dict[str, float] = {"correct": correct(prompt, answer.text, reference)}
    total = config.correct * parts["correct"]
    if config.format:
        formed = 1.0 if form is None else form(prompt, answer.text, reference)
        parts["format"] = formed if answer.complete else 0.0
        total += config.format * parts["format"]
    if config.overlong:
        parts["overlong"] = overlong(answer.tokens, config.overlong_from, config.overlong_to)
        total += config.overlong * parts["overlong"]
    return Turn(total, True, parts)


FORMS: Final[Mapping[str, Callable[[str, Task], bool]]] = {
    "math": lambda response, task: ANSWER.search(response) is not None,
    "code": lambda response, task: (
        program(response, task.reference["function"], task.reference["documented"]) is not None
    ),
}
