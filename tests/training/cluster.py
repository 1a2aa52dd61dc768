"""Small runs over real processes: a tiny model and a fixed set of documents, trained by the loop's own step."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from tests.tiny import tiny_model
from tests.training.test_layout import EOS, MODEL, conversation
from torch.multiprocessing.spawn import spawn

from redraft.training.build import Run
from redraft.training.draft import DraftConfig
from redraft.training.noise import NoiseConfig
from redraft.training.objective import DraftAndEdit, ObjectiveConfig
from redraft.training.optimizer import Optimizer
from redraft.training.parallel import Distributed, ParallelConfig, Ranks
from redraft.training.recipe import BatchConfig, OptimizerConfig, Recipe, RunConfig, ScheduleConfig
from redraft.training.state import load_state, save_state, states
from redraft.training.step import train_step
from redraft.types import Sample

SAMPLES = 5


class Documents:
    """Row i of the data is one document of a few turns."""

    def documents(self, index: int) -> list[Sample]:
        rng = np.random.default_rng(index)
        turns = [(int(rng.integers(1, 9)), int(rng.integers(2, 12))) for _ in range(1 + index % 2)]
        return [conversation(rng, turns, index)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a run is laid over the processes, and what it trains. length: positions of a forward; 36 makes several of a
    step's documents, 200 makes one."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    length: int = 36
    kind: str = "muon"
    share: float = 0.0
    balance_weight: float = 0.0
    steps: int = 4
    model: tuple[tuple[str, Any], ...] = ()


def open_case(case: Case, folder: Path | None = None) -> Run:
    """A run of the tiny model, continued from the folder's last checkpoint if it has one."""
    ranks = Ranks()
    model = tiny_model(**MODEL | dict(case.model)).train()
    recipe = Recipe(
        optimizer=OptimizerConfig(kind=case.kind, rate=1e-2, muon_rate=2e-2, clip=0.5, balance=1e-2),
        schedule=ScheduleConfig(steps=20, warmup=1),
        batch=BatchConfig(samples=SAMPLES, length=case.length),
        run=RunConfig(precision="float32"),
    )
    distributed = Distributed(model, case.parallel, ranks)
    optimizer = Optimizer(distributed, recipe.optimizer)
    config = ObjectiveConfig(noise=NoiseConfig(), mtf=DraftConfig(share=case.share), balance_weight=case.balance_weight)
    tokenizer: Any = SimpleNamespace(vocab_size=48, special_ids=frozenset({40}), eos_ids=(EOS,))
    run = Run(
        recipe=recipe,
        folder=folder or Path(),
        ranks=ranks,
        model=model,
        distributed=distributed,
        optimizer=optimizer,
        objective=DraftAndEdit(config, fill=4),
        tokenizer=tokenizer,
        source=cast(Any, Documents()),
    )
    if folder is not None and states(folder):
        run.step = load_state(states(folder)[-1], distributed, optimizer)["step"]
    return run


def trained(case: Case, folder: Path | None = None) -> list[dict[str, float]]:
    """The metrics of the steps that a run takes; with a folder it leaves a checkpoint there."""
    run = open_case(case, folder)
    lines = [train_step(run) for _ in range(case.steps)]
    if folder is not None:
        save_state(folder, run.step, run.distributed, run.optimizer, {}, keep=2)
    return lines


def in_processes(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """Runs `function(*arguments)` in `count` processes of one group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_process, (count, port, function, arguments), nprocs=count)


def _process(rank: int, count: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    function(*arguments)
    Ranks().end()
