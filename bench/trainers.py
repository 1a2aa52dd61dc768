"""The trainers that are compared, behind one face: take an optimiser step on the first documents of the batch.

All train the same random weights and leave them as they are (the learning rate is 1e-30), so that a step can be
repeated. Noise is that of (seed, step 0, document) throughout; only diffusers draws its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler
from diffusers.training_utils import compute_confidence_aware_loss
from torch import Tensor, nn

from bench.public_trainer import PublicTrainer, Row, rows
from bench.training_sizes import FROZEN, Size
from redraft.hf.configuration import LLaDA2MoeConfig
from redraft.hf.modeling import LLaDA2MoeModelLM
from redraft.model.network import LLaDA2
from redraft.training.build import Run
from redraft.training.data.table import BadRows
from redraft.training.layout import lay_out, spans
from redraft.training.noise import NoiseConfig, add_noise
from redraft.training.objective import DraftAndEdit, ObjectiveConfig
from redraft.training.optimizer import Optimizer
from redraft.training.parallel import Distributed, Ranks
from redraft.training.precision import autocast, compute_dtype
from redraft.training.step import train_step
from redraft.types import Sample

CONFIDENCE = 2.0  # the weight of the confidence loss, and
TEMPERATURE = 0.5  # its temperature, in diffusers' script

# What diffusers' script trains, as a setting of our objective: masks and their complement, no editing stream.
DRAFTS_ONLY = ObjectiveConfig(
    copies=2,
    edit_weight=0.0,
    confidence=CONFIDENCE,
    noise=NoiseConfig(ratio_min=0.0, ratio_max=1.0, full=0.0, complementary=True, replace_max=0.0),
)


@dataclass(frozen=True)
class Outcome:
    """loss: of the whole step. norm: of its gradient, None where the trainer doesn't look. positions: that went through
    the network with gradient, padding included. scored: of them, those whose loss counts."""

    loss: float
    norm: float | None
    positions: int
    scored: int


class Trainer(Protocol):
    name: str

    def step(self, documents: int) -> Outcome:
        """One optimiser step on the first `documents` documents."""
        ...


@dataclass(frozen=True)
class Task:
    """What all trainers of a cell share."""

    size: Size
    dtype: str
    seed: int
    network: LLaDA2

    @cached_property
    def samples(self) -> list[Sample]:
        return self.size.samples(self.seed)

    @cached_property
    def run(self) -> Run:
        """A run of the package without files. One for all arms: they differ in the recipe only."""
        recipe = self.size.recipe(self.size.plain(), len(self.samples), self.dtype, self.seed)
        ranks = Ranks()
        distributed = Distributed(self.network, recipe.parallel, ranks)
        optimizer = Optimizer(distributed, recipe.optimizer)
        objective = DraftAndEdit(recipe.objective, self.network.config.block_length)
        source = _Fixed(self.samples)
        tokenizer = self.size.tokenizer
        return Run(recipe, Path(), ranks, self.network, distributed, optimizer, tokenizer, objective, source)


@dataclass(frozen=True)
class _Fixed:
    samples: Sequence[Sample]
    rows: int | None = None
    fingerprint: str = ""
    bad: BadRows = field(default_factory=BadRows)

    def documents(self, index: int) -> Sequence[Sample]:
        return self.samples[index : index + 1]


class Ours:
    """The package's own step."""

    def __init__(self, name: str, task: Task, objective: ObjectiveConfig) -> None:
        self.name, self._task, self._objective = name, task, objective

    def step(self, documents: int) -> Outcome:
        task, run = self._task, self._task.run
        run.recipe = task.size.recipe(self._objective, documents, task.dtype, task.seed)
        length, eos = run.model.config.block_length, task.size.tokenizer.eos_ids
        run.objective = DraftAndEdit(self._objective, length)
        run.step, run.positions = 0, 0
        line = train_step(run)
        layout = lay_out(task.samples[:documents], length, eos)
        scored = int(layout.supervised_N.sum()) * self._objective.copies
        return Outcome(line["loss"], line["gradient_norm"], int(line["positions"]), scored)


class Public:
    """The trainer of `public_trainer`, on the noise that ours has. Its noise is drawn beforehand, ours in the step."""

    name = "public"

    def __init__(self, task: Task) -> None:
        self._task = task
        size, draws = task.size, task.run.draws
        objective = size.plain()
        layout = lay_out(task.samples, draws.block_length, draws.eos_ids, copies=objective.copies)
        noisy = add_noise(
            layout,
            objective.noise,
            seed=draws.seed,
            step=0,
            mask_id=draws.mask_id,
            replacements=draws.replacements,
        )
        self._rows: list[Row] = rows(task.samples, layout, noisy, draws.eos_ids[0])
        self._copies = objective.copies
        optimizer = task.run.recipe.optimizer
        self._trainer = PublicTrainer(
            task.network, batch=size.rows, rate=FROZEN, clip=optimizer.clip, decay=optimizer.weight_decay
        )

    def step(self, documents: int) -> Outcome:
        chosen = self._rows[: documents * self._copies]
        with _precision(self._task.dtype):
            loss, norm = self._trainer.step(chosen)
        return Outcome(loss, norm, self._trainer.positions, sum(int(row.supervised.sum()) for row in chosen))


class Diffusers:
    """The step of diffusers' `train_llada2.py`: two plain forwards with complementary masks, and its confidence-aware
    loss over the logits of all positions, by its own noise and loss functions, on our transformers model."""

    name = "diffusers"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model = LLaDA2MoeModelLM(LLaDA2MoeConfig(**task.network.config.to_dict()), task.network).train()
        self._scheduler: Any = BlockRefinementScheduler(block_length=task.network.config.block_length)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=FROZEN, weight_decay=0.0, foreach=True)
        self._mask_id = task.size.tokenizer.mask_id

    def step(self, documents: int) -> Outcome:
        samples, rows_ = self._task.samples[:documents], self._task.size.rows
        batches = [samples[first : first + rows_] for first in range(0, documents, rows_)]
        generator = torch.Generator().manual_seed(self._task.seed)
        total, positions, scored = 0.0, 0, 0
        with _precision(self._task.dtype):
            for batch in batches:
                loss, size, counted = self._loss(batch, generator)
                loss = loss / len(batches)  # as accelerate accumulates
                loss.backward()
                total, positions, scored = total + float(loss.detach()), positions + size, scored + counted
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return Outcome(total, None, positions, scored)

    def _loss(self, batch: Sequence[Sample], generator: torch.Generator) -> tuple[Tensor, int, int]:
        """The loss of both views, the positions that they lay out, and those that are masked in either."""
        tokens_BL = nn.utils.rnn.pad_sequence([torch.from_numpy(s.tokens).long() for s in batch], batch_first=True)
        real_BL = torch.arange(tokens_BL.shape[1]) < torch.tensor([len(s) for s in batch])[:, None]
        positions_BL = torch.arange(tokens_BL.shape[1]).expand_as(tokens_BL)
        parts = [self._noise(tokens_BL[i], real_BL[i], sample, generator) for i, sample in enumerate(batch)]
        noisy, noisy_reverse, masked, masked_reverse = (torch.cat(part) for part in zip(*parts, strict=True))
        loss = torch.zeros(())
        for view_BL, masked_BL in ((noisy, masked), (noisy_reverse, masked_reverse)):
            logits = self._model(view_BL, attention_mask=real_BL.long(), position_ids=positions_BL).logits
            logits = logits.index_fill(-1, torch.tensor([self._mask_id]), torch.finfo(logits.dtype).min)
            part, _, _ = compute_confidence_aware_loss(
                logits,
                tokens_BL.masked_fill(~masked_BL, -100),
                lambda_conf=CONFIDENCE,
                temperature=TEMPERATURE,
                per_token_weights=masked_BL.to(logits.dtype),
            )
            loss = loss + part
        return loss, 2 * tokens_BL.numel(), int(masked.sum() + masked_reverse.sum())

    def _noise(
        self, tokens_L: Tensor, real_L: Tensor, sample: Sample, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Row by row, since the script takes one length for all prompts (and one row a batch by default)."""
        return self._scheduler.add_noise(
            tokens_L[None],
            real_L[None].long(),
            prompt_length=int(spans(sample.supervised)[0, 0]),
            block_length=self._model.config.block_length,
            mask_token_id=self._mask_id,
            generator=generator,
        )


def _precision(dtype: str) -> Any:
    return autocast(compute_dtype(dtype, "cpu"), "cpu")


def build(name: str, task: Task) -> Trainer:
    """A trainer by its name in `ARMS`."""
    return _MAKERS[name](task)


_MAKERS: dict[str, Callable[[Task], Trainer]] = {
    "redraft": lambda task: Ours("redraft", task, task.size.plain()),
    "public": Public,
    "redraft-m2t": lambda task: Ours("redraft-m2t", task, DRAFTS_ONLY),
    "diffusers": Diffusers,
    "mtf-all": lambda task: Ours("mtf-all", task, task.size.drafting(1.0)),
    "mtf-recipe": lambda task: Ours("mtf-recipe", task, task.size.drafting(task.size.mtf_share)),
}
ARMS = tuple(_MAKERS)
