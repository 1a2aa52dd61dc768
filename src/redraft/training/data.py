"""Skills as an endless, addressable source of training documents: sample `i` is a pure function of (seed, i)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from redraft.errors import ConfigError
from redraft.skills import SKILLS
from redraft.skills.base import Task
from redraft.text.tokenizer import Tokenizer
from redraft.training.recipe import DataConfig
from redraft.types import Sample


class SkillTasks:
    """Training tasks by index, with a curriculum over levels."""

    def __init__(self, config: DataConfig, seed: int, total: int):
        unknown = sorted(set(config.skills) - set(SKILLS))
        if unknown:
            raise ConfigError(f"data.skills: unknown skill {unknown[0]!r}; known: {', '.join(sorted(SKILLS))}")
        if not config.skills or any(weight < 0 for weight in config.skills.values()) or not sum(config.skills.values()):
            raise ConfigError(f"data.skills must give at least one skill a positive weight, got {config.skills!r}")
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


class SkillSource:
    """Training documents by index: tasks rendered by the chat template, the answer supervised."""

    def __init__(self, tasks: SkillTasks, tokenizer: Tokenizer, block_length: int):
        self.tasks, self.tokenizer, self.block_length = tasks, tokenizer, block_length

    def __getitem__(self, index: int) -> Sample:
        task = self.tasks[index]
        messages = [*task.messages, {"role": "assistant", "content": task.answer}]
        ids, supervised = self.tokenizer.render_chat_with_spans(messages, list(task.tools) or None)
        if len(ids) > self.tasks.config.max_length:
            raise ConfigError(
                f"sample {index} ({task.skill}, level {task.level}) has {len(ids)} tokens, over data.max_length "
                f"{self.tasks.config.max_length}"
            )
        return finish(ids, supervised, self.tokenizer.eos_ids[0], self.block_length, index)


def finish(ids: list[int], supervised: list[bool], eos: int, block_length: int, index: int) -> Sample:
    """A document filled with supervised EOS up to the block border."""
    padding = -len(ids) % block_length
    return Sample(
        tokens=np.array(ids + [eos] * padding, np.int32),
        supervised=np.array(list(supervised) + [True] * padding, bool),
        index=index,
    )


def corpus(tasks: SkillTasks, samples: int) -> Iterator[str]:
    """Prompts, answers and tool signatures of training tasks spread over the run, for the tokenizer's training."""
    for i in range(samples):
        task = tasks[i * max(1, tasks.total // samples)]
        yield task.prompt
        yield task.answer
        for tool in task.tools:
            function = tool["function"]
            yield (
                "Tools:\n"
                + function["name"]
                + "("
                + "".join(
                    f"{name}?: {kind.get('type')}, " for name, kind in function["parameters"]["properties"].items()
                )
            )
