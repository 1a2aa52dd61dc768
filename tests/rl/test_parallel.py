"""Likelihood, loss and gradient over two processes with FSDP2 are those of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.test_likelihood import DRAWS, SMALL
from tests.tiny import tiny_model
from tests.training.cluster import in_processes
from tests.training.test_layout import some_documents

from redraft.rl.composite import LikelihoodConfig, composite
from redraft.rl.likelihood import likelihood, stored
from redraft.rl.loss import LossConfig, policy_loss
from redraft.training.optimizer import Optimizer
from redraft.training.parallel import Distributed, ParallelConfig, Ranks
from redraft.training.recipe import OptimizerConfig

pytestmark = pytest.mark.slow
ADVANTAGE = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.25, -2.0], dtype=torch.float64)


def measured(parallel: ParallelConfig) -> dict[str, Any]:
    """Bounds and gradient norms of two steps on a batch that the processes share."""
    ranks = Ranks()
    model = tiny_model(**SMALL).eval()
    distributed = Distributed(model, parallel, ranks)
    optimizer = Optimizer(distributed, OptimizerConfig(rate=1e-2, weight_decay=0.0, clip=1e9))
    config = LikelihoodConfig(levels=2, edits=True)
    documents = some_documents()
    own = [documents[:3], documents[3:]][ranks.rank :: ranks.world]
    parts = [composite(part, config, replace(DRAWS, seed=9)) for part in own]
    old = stored(model, parts)
    out: dict[str, Any] = {"norms": []}
    for _ in range(2):
        bounds = {}
        for part, old_K in zip(parts, old, strict=True):
            new = likelihood(model, part, entropy=True)
            index = [document.index for document in part.layout.documents]
            loss = policy_loss(new, old_K, ADVANTAGE[index], LossConfig())
            (loss.total / 6).backward()
            bounds |= dict(zip(map(str, index), new.by_document.tolist(), strict=True))
        out["norms"].append(optimizer.step(1.0))
        totals = ranks.sums({str(i): bounds.get(str(i), 0.0) for i in range(6)})
    return out | {"bounds": totals}


def write(folder: str) -> None:
    found = measured(ParallelConfig(data="shard"))
    if Ranks().first:
        (Path(folder) / "two.json").write_text(json.dumps(found))


def test_fsdp2_changes_nothing(tmp_path: Path) -> None:
    in_processes(2, write, str(tmp_path))
    two, one = json.loads((tmp_path / "two.json").read_text()), measured(ParallelConfig())
    assert two["bounds"] == pytest.approx(one["bounds"], rel=1e-9)
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-9)
