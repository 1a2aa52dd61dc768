"""Where the answers of a step come from: the trainer's own process, or a fleet of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from redraft.engine.llm import LLM
from redraft.rl.fleet.fleet import Fleet
from redraft.rl.fleet.ledger import Ledger
from redraft.rl.fleet.ray_backend import RayBackend
from redraft.rl.fleet.worker import Group
from redraft.rl.rollout import roll_out
from redraft.training.tensors import merged

if TYPE_CHECKING:
    from redraft.rl.build import RLRun


class Answers(Protocol):
    """Answers to the prompts of one step after the other."""

    def take(self) -> Sequence[Group]:
        """Those of the next step, in order."""
        ...

    def trained(self) -> None:
        """The step is over, and the run's network has the weights of the next one."""
        ...

    def metrics(self) -> dict[str, float]:
        """What there is to say of those who answer."""
        ...

    def close(self) -> None: ...


@dataclass
class InProcess:
    """Written by the very network that learns, while it doesn't: staleness 0."""

    run: RLRun
    llm: LLM

    def take(self) -> list[Group]:
        run, batch = self.run, self.run.recipe.batch
        prompts = range(run.step * batch.prompts, (run.step + 1) * batch.prompts)
        seed, mask_id = run.recipe.seed, run.draws.mask_id
        groups = roll_out(
            self.llm, run.environment, prompts, batch.answers, run.recipe.rollout, seed=seed, mask_id=mask_id
        )
        return [Group(group, run.step, {}) for group in groups]

    def trained(self) -> None:
        self.llm.weights_changed()

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Workers:
    """Written by a fleet while the network learns, by weights at most `workers.max_staleness` steps old."""

    def __init__(self, run: RLRun) -> None:
        self.run = run
        config, steps = run.recipe.workers, run.recipe.schedule.steps
        ledger: Ledger[Group] = Ledger(run.recipe.batch.prompts, config.max_staleness, run.step, steps)
        backend = RayBackend(run.recipe, run.folder)
        self.fleet = Fleet(backend, ledger, workers=config.count, job=config.prompts, weights=self._weights())

    def take(self) -> list[Group]:
        return self.fleet.take()

    def trained(self) -> None:
        self.fleet.trained(self._weights())

    def metrics(self) -> dict[str, float]:
        return {"restarts": self.fleet.restarts, "duplicates": self.fleet.duplicates}

    def close(self) -> None:
        self.fleet.close()

    def _weights(self) -> dict[str, Tensor]:
        """A copy: the network goes on learning while the workers read it."""
        state = merged(self.run.model, self.run.model.state_dict())
        return {name: state[name].detach().to("cpu", copy=True) for name in state}
