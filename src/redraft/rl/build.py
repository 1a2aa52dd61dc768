"""A reinforcement learning run, built in its folder, from its last checkpoint if it has one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from redraft.engine.llm import LLM
from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.rl.environment import Environment
from redraft.rl.environments import open_environment
from redraft.rl.recipe import RLRecipe
from redraft.rl.source import Answers, InProcess, Workers
from redraft.training.build import BaseRun, copy_tokenizer, open_base
from redraft.training.metrics import MetricsFile


@dataclass
class RLRun(BaseRun):
    """A run of `redraft rl`. reference: the network as it was at the start, where the loss compares with it."""

    recipe: RLRecipe
    environment: Environment
    reference: LLaDA2 | None

    @property
    def fingerprint(self) -> str:
        return self.environment.fingerprint

    @cached_property
    def answers(self) -> Answers:
        """Begins to answer when it is first asked for, with the step that comes."""
        if self.recipe.workers.count:
            return Workers(self)
        return InProcess(self, LLM.from_model(self.model, self.tokenizer, max_running=self.recipe.rollout.max_running))

    def close(self) -> None:
        """Ends workers, and closes the file of samples."""
        for name in ("answers", "samples"):
            if name in vars(self):
                getattr(self, name).close()

    @cached_property
    def samples(self) -> MetricsFile:
        """Rollouts that a person may read: samples.jsonl."""
        return MetricsFile(self.folder / "samples.jsonl", self.step)


def open_rl_run(recipe: RLRecipe, *, resume: bool = True) -> RLRun:
    """Builds a run, or continues the one in `run.output` (unless `resume` is False, which refuses a used folder).

    The network stays in evaluation mode, where it computes in training what it computes in the engine. Raises
    ConfigError if the run that is there can't go on by this recipe.
    """
    environment = open_environment(recipe.environment, recipe.reward, seed=recipe.seed)
    base, start = open_base(recipe, lambda folder: copy_tokenizer(recipe.start, folder), resume=resume)
    if base.ranks.world > 1:
        raise ConfigError(f"redraft rl trains in one process, started in a group of {base.ranks.world}")
    reference = start.reference(base.ranks) if recipe.loss.kl else None
    base.model.eval()
    run = RLRun(**vars(base) | {"recipe": recipe, "environment": environment, "reference": reference})
    run.restore()
    return run
