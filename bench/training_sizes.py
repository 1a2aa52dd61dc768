"""What the training benchmark trains: two models, each with a batch of real documents."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bench.machine import ROOT
from redraft.model.config import ModelConfig
from redraft.model.folder import checkpoint_folder
from redraft.model.network import LLaDA2
from redraft.text.tokenizer import Tokenizer
from redraft.training.data.config import DataConfig
from redraft.training.data.documents import Renderer
from redraft.training.data.skills import SkillRows, SkillTasks
from redraft.training.draft import DraftConfig
from redraft.training.objective import ObjectiveConfig
from redraft.training.recipe import BatchConfig, OptimizerConfig, Recipe, ScheduleConfig, load_recipe
from redraft.types import Sample

FROZEN = 1e-30  # a learning rate of AdamW's full work that leaves every float32 weight as it is


@dataclass(frozen=True, kw_only=True)
class Size:
    """model: fields of `ModelConfig`; the tokenizer is the embedded model's in all of them. objective: with its MTF
    settings, which only the MTF steps use. documents: of a step. text: whole texts of about so many tokens, all learnt;
    0 for conversations, whose answers are. forward: document positions of one of our forwards. rows: rows in a forward
    of the other trainers."""

    name: str
    model: dict[str, Any]
    objective: ObjectiveConfig
    data: DataConfig
    documents: int
    text: int = 0
    forward: int = 4096
    rows: int = 8

    @property
    def tokenizer(self) -> Tokenizer:
        return _tokenizer()

    @property
    def config(self) -> ModelConfig:
        eos = self.tokenizer.eos_ids[0]
        return ModelConfig(**self.model, mask_token_id=self.tokenizer.mask_id, eos_token_id=eos, pad_token_id=eos)

    @property
    def mtf_share(self) -> float:
        """The recipe's share of documents that the model drafts on."""
        return self.objective.mtf.share

    def recipe(self, objective: ObjectiveConfig, documents: int, dtype: str, seed: int) -> Recipe:
        """Steps with AdamW that leave the weights, the balance and so every other step's loss as they are."""
        return Recipe(
            seed=seed,
            objective=objective,
            optimizer=OptimizerConfig(kind="adamw", rate=FROZEN, balance=0.0),
            schedule=ScheduleConfig(steps=1, warmup=0, decay=0.0),
            batch=BatchConfig(samples=documents, length=self.forward),
            run=replace(Recipe().run, precision=dtype),
        )

    def plain(self) -> ObjectiveConfig:
        """The objective without drafts of the model."""
        return self.drafting(0.0)

    def drafting(self, share: float) -> ObjectiveConfig:
        """The objective in which the model drafts on a share of the documents."""
        return replace(self.objective, mtf=replace(self.objective.mtf, share=share, start=0))

    def network(self, seed: int) -> LLaDA2:
        """Random weights in float32, in training mode."""
        torch.manual_seed(seed)
        return LLaDA2(self.config, dtype=torch.float32).train()

    def samples(self, seed: int) -> list[Sample]:
        """The documents of the step."""
        tasks = SkillTasks(self.data, seed, 1)
        if self.text:
            return [self._joined(tasks, seed, index) for index in range(self.documents)]
        rows, render = SkillRows(tasks), Renderer(self.tokenizer, self.config.max_position_embeddings)
        return [sample for index in range(self.documents) for sample in render.documents(rows[index].row, index)]

    def _joined(self, tasks: SkillTasks, seed: int, index: int) -> Sample:
        """Tasks with their answers, one after another, cut at 3/4 to 5/4 of the length."""
        rng = random.Random(f"{seed}:{index}")
        length, ids = rng.randint(3 * self.text // 4, 5 * self.text // 4), []
        while len(ids) < length - 1:
            task = tasks[rng.randrange(1 << 30)]
            ids += self.tokenizer.encode(f"{task.prompt}\n{task.answer}\n\n")
        ids = [*ids[: length - 1], self.tokenizer.eos_ids[0]]
        return Sample(np.array(ids, np.int32), np.ones(length, bool), index)


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.load(checkpoint_folder(None))


def document_positions(samples: Sequence[Sample]) -> int:
    """Tokens of the documents, prompts included."""
    return sum(len(sample) for sample in samples)


def sizes() -> dict[str, Size]:
    """The recipe of the embedded model, and a model of about 110 million parameters in the family's proportions."""
    nano = load_recipe(ROOT / "recipes" / "nano.yaml")
    large = {
        "vocab_size": 32768,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "moe_intermediate_size": 192,
        "num_experts": 32,
        "num_experts_per_tok": 4,
    }
    return {
        "nano": Size(
            name="nano",
            model=nano.model | {"vocab_size": nano.tokenizer.vocab_size},
            objective=nano.objective,
            data=nano.data,
            documents=nano.batch.samples,
            forward=nano.batch.length,
        ),
        "100m": Size(
            name="100m",
            model=large,
            objective=ObjectiveConfig(mtf=DraftConfig(share=nano.objective.mtf.share)),
            data=nano.data,
            documents=4,
            text=512,
            rows=4,
        ),
    }
