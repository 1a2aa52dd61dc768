"""The project's own verifiable tasks as an environment."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping

from redraft.errors import ConfigError
from redraft.rl.environment import Answer, SingleTurn, Turn
from redraft.rl.rewards import RewardConfig, shaped, skill_correct, skill_format
from redraft.skills import SKILLS
from redraft.skills.base import Task


class SkillEnvironment:
    """Tasks of the split "train", by (seed, index). skills: weight of each. levels: weight of each level, the first one
    first; empty for equal ones."""

    turns = 1

    def __init__(
        self, skills: Mapping[str, float], reward: RewardConfig, *, levels: tuple[float, ...] = (), seed: int = 0
    ) -> None:
        for name in skills:
            if name not in SKILLS:
                raise ConfigError(f"environment.skills: unknown skill {name!r}; known: {', '.join(sorted(SKILLS))}")
            if len(levels) > (most := len(SKILLS[name].levels)):
                raise ConfigError(f"environment.levels: {name} has {most} levels, got {len(levels)} weights")
        if not skills or any(not weight > 0 for weight in skills.values()):
            raise ConfigError(f"environment.skills must give weights above 0 to some skills, got {dict(skills)}")
        if levels and (min(levels) < 0 or not sum(levels) > 0):
            raise ConfigError(f"environment.levels must be weights of at least 0, not all 0, got {list(levels)}")
        self.skills, self.reward, self.levels, self.seed = dict(skills), reward, levels, seed

    @property
    def fingerprint(self) -> str:
        said = json.dumps(["skills", self.skills, self.levels, self.seed])
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()

    def task(self, index: int) -> Task:
        rng = random.Random(f"{self.seed}:{index}")
        skill = SKILLS[rng.choices(list(self.skills), list(self.skills.values()))[0]]
        level = rng.choices(skill.levels[: len(self.levels)], self.levels)[0] if self.levels else None
        return skill.generate(rng, "train", level)

    def reset(self, index: int) -> SingleTurn:
        task = self.task(index)

        def score(answer: Answer) -> Turn:
            return shaped(self.reward, task.prompt, answer, task, correct=skill_correct, form=skill_format)

        return SingleTurn(task.messages, score, task.tools)
