"""A rollout worker: an engine and an environment of its own, and weights that are replaced between two blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any

import torch
from torch import Tensor

from redraft.engine.llm import LLM
from redraft.engine.settings import resolve_device
from redraft.errors import ConfigError
from redraft.model.checkpoint import load_model
from redraft.model.folder import checkpoint_folder
from redraft.rl.composite import composites
from redraft.rl.environments import open_environment
from redraft.rl.fleet.ledger import Job
from redraft.rl.likelihood import likelihood
from redraft.rl.recipe import RLRecipe
from redraft.rl.rollout import Rollout, roll_out
from redraft.text.tokenizer import Tokenizer
from redraft.training.build import draws_of
from redraft.types import CanvasEvent


@dataclass(frozen=True)
class Group:
    """The answers to one prompt. version: of the weights that began them. behaviour: by `Sample.index`, the bound of
    each answer under the weights that ended it, by the noise that the trainer uses."""

    rollouts: list[Rollout]
    version: int
    behaviour: dict[int, float]


class RolloutWorker:
    """Two threads may use it: one answers, the other brings weights. folder: of the run, with its tokenizer."""

    def __init__(self, recipe: RLRecipe, folder: Path) -> None:
        self.recipe = recipe
        self.version = -1
        self.environment = open_environment(recipe.environment, recipe.reward, seed=recipe.seed)
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        # In float32, as the trainer keeps its weights: the two are compared.
        model = load_model(checkpoint_folder(recipe.start), device=resolve_device(None), dtype=torch.float32).eval()
        self.llm = LLM.from_model(model, self.tokenizer, max_running=recipe.rollout.max_running)
        self._new: tuple[int, Mapping[str, Tensor]] | None = None
        self._came = Condition()

    def update(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Brings weights. They are taken when the open blocks of running requests are done, or before the next job."""
        with self._came:
            if self._new is None or version > self._new[0]:
                self._new = version, weights
            self._came.notify_all()

    def answer(self, job: Job) -> list[Group]:
        """Answers the prompts of a job; waits for weights of version `job.least` where it has none yet."""
        with self._came:
            self._came.wait_for(lambda: max(self.version, self._new[0] if self._new else -1) >= job.least)
        self._take()
        version, batch = self.version, self.recipe.batch
        groups = roll_out(
            self,
            self.environment,
            job.prompts,
            batch.answers,
            self.recipe.rollout,
            seed=self.recipe.seed,
            mask_id=self._mask,
        )
        behaviour = self._behaviour(groups, job.prompts[0] // batch.prompts)
        return [
            Group(group, version, {s.sample.index: behaviour[s.sample.index] for r in group for s in r.steps})
            for group in groups
        ]

    def render(self, messages: Any, tools: Any = None) -> list[int]:
        return self.llm.render(messages, tools)

    def stream(self, prompts: Any, params: Any = None) -> Iterator[CanvasEvent]:
        """That of the engine, which takes new weights on the way."""
        for event in self.llm.stream(prompts, params):
            yield event
            self._take()

    @property
    def _mask(self) -> int:
        mask = self.llm.model.config.mask_token_id
        if mask is None:
            raise ConfigError("the checkpoint names no mask token; reinforcement learning needs one")
        return mask

    def _take(self) -> None:
        with self._came:
            new, self._new = self._new, None
        if new is not None and new[0] > self.version:
            self.llm.change_weights(lambda: self._load(*new))

    def _load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        self.llm.model.load_state_dict(dict(weights))
        self.version = version

    def _behaviour(self, groups: list[list[Rollout]], step: int) -> dict[int, float]:
        steps = [step for group in groups for rollout in group for step in rollout.steps]
        model, recipe = self.llm.model, self.recipe
        draws = draws_of(recipe, step, model.config, self.tokenizer)
        paths = {each.sample.index: each.trajectory for each in steps}
        parts = composites(
            [each.sample for each in steps], recipe.likelihood, draws, length=recipe.batch.length, trajectories=paths
        )
        out: dict[int, float] = {}
        with torch.no_grad():
            for part in parts:
                bound_D = likelihood(model, part.to(model.device), entropy=True).by_document.tolist()
                out |= {d.index: bound for d, bound in zip(part.layout.documents, bound_D, strict=True)}
        return out
