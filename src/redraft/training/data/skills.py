"""Skills as an endless, addressable source of rows: task `i` is a pure function of (seed, i)."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict

from redraft.errors import ConfigError
from redraft.skills import SKILLS
from redraft.skills.base import Task
from redraft.training.data.config import DataConfig
from redraft.training.data.rows import Chat
from redraft.training.data.table import Found


class SkillTasks:
    """Training tasks by index, with a curriculum over levels. total: tasks of the whole run."""

    def __init__(self, config: DataConfig, seed: int, total: int):
        unknown = sorted(set(config.skills) - set(SKILLS))
        if unknown:
            raise ConfigError(f"data.skills: unknown skill {unknown[0]!r}; known: {', '.join(sorted(SKILLS))}")
        self.config, self.seed, self.total = config, seed, total
        self.names, self.weights = list(config.skills), list(config.skills.values())

    def __getitem__(self, index: int) -> Task:
        rng = random.Random(f"{self.seed}:{index}")
        skill = SKILLS[rng.choices(self.names, self.weights)[0]]
        return skill.generate(rng, "train", rng.choices(skill.levels, self._level_weights(index, len(skill.levels)))[0])

    def _level_weights(self, index: int, levels: int) -> list[float]:
        config = self.config
        for name in ("level_start", "level_end"):
            if len(getattr(config, name)) < levels:
                raise ConfigError(f"data.{name} needs {levels} weights, got {getattr(config, name)!r}")
        done = min(1.0, index / max(1.0, config.curriculum * self.total))
        pairs = zip(config.level_start[:levels], config.level_end[:levels], strict=True)
        return [start + (end - start) * done for start, end in pairs]


class SkillRows:
    """Tasks as conversations whose answer is learnt."""

    rows = None

    def __init__(self, tasks: SkillTasks) -> None:
        self.tasks = tasks
        said = json.dumps([asdict(tasks.config)["skills"], tasks.seed])  # not the total: a run may be made longer
        self.fingerprint = hashlib.blake2b(said.encode(), digest_size=8).hexdigest()

    def __getitem__(self, index: int) -> Found:
        task = self.tasks[index]
        messages = [*task.messages, {"role": "assistant", "content": task.answer}]
        row = Chat(messages, list(task.tools) or None, (len(messages) - 1,))
        return Found(row, f"task {index} ({task.skill}, level {task.level})")

    def texts(self, index: int) -> Iterator[str]:
        """Prompt, answer and tool signatures as the project's own chat template writes them."""
        task = self.tasks[index]
        yield task.prompt
        yield task.answer
        for tool in task.tools:
            function = tool["function"]
            kinds = function["parameters"]["properties"].items()
            signature = "".join(f"{name}?: {kind.get('type')}, " for name, kind in kinds)
            yield f"Tools:\n{function['name']}({signature}"
