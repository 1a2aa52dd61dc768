"""Environments by the `environment` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redraft.errors import ConfigError
from redraft.rl.environment import Environment
from redraft.rl.environments.gym import GymEnvironment
from redraft.rl.environments.skills import SkillEnvironment
from redraft.rl.rewards import RewardConfig


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """kind: "skills", the project's own tasks; or "gym", a data set of reasoning-gym. skills: weight of each skill.
    levels: weight of each level, the first one first; empty for equal ones. dataset, arguments: of reasoning-gym."""

    kind: str = "skills"
    skills: dict[str, float] = field(default_factory=dict)
    levels: tuple[float, ...] = ()
    dataset: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in ("skills", "gym"):
            raise ConfigError(f'environment.kind must be "skills" or "gym", got {self.kind!r}')
        foreign = ("dataset", "arguments") if self.kind == "skills" else ("skills", "levels")
        for name in foreign:
            if value := getattr(self, name):
                raise ConfigError(
                    f"environment.{name} has no effect with environment.kind {self.kind!r}, got {value!r}"
                )


def open_environment(config: EnvironmentConfig, reward: RewardConfig, *, seed: int) -> Environment:
    """The environment of a recipe. Raises ConfigError where it doesn't exist."""
    if config.kind == "gym":
        return GymEnvironment(config.dataset, reward, arguments=config.arguments, seed=seed)
    return SkillEnvironment(config.skills, reward, levels=config.levels, seed=seed)
