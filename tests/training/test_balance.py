"""The routers' balance loss is DeepSeek-V3's formula, document by document, and pulls loads together."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model
from tests.training.cluster import Case, trained
from tests.training.test_layout import EOS, MODEL, noise, some_documents
from tests.training.test_loop import TINY, recipe

from redraft.errors import ConfigError
from redraft.model.router import routers
from redraft.training.balance import DocumentBalance, document_balance
from redraft.training.build import open_run
from redraft.training.forward import noisy_hidden
from redraft.training.layout import lay_out
from redraft.training.lora import LoraConfig, add_lora
from redraft.training.parallel import ParallelConfig
from redraft.training.step import train_step


def by_the_formula(score_TE: np.ndarray, ids_TK: np.ndarray) -> float:
    """Equations 17 to 20 as they stand, for one sequence."""
    (length, experts), chosen = score_TE.shape, ids_TK.shape[1]
    total = 0.0
    for expert in range(experts):
        f = experts / (chosen * length) * sum(expert in ids_TK[t] for t in range(length))
        p = sum(score_TE[t, expert] / score_TE[t].sum() for t in range(length)) / length
        total += f * p
    return total


def test_it_is_the_formula_of_each_document() -> None:
    generator = torch.Generator().manual_seed(0)
    score_NE = torch.rand(30, 8, generator=generator, dtype=torch.float64)
    ids_NK = torch.rand(30, 8, generator=generator).topk(2).indices
    document_N = torch.tensor([0] * 7 + [1] * 9 + [0] * 4 + [2] * 10)
    found = document_balance(score_NE, ids_NK, document_N, torch.tensor([11, 9, 10]))
    for number in range(3):
        here = document_N == number
        expected = by_the_formula(score_NE[here].numpy(), ids_NK[here].numpy())
        assert float(found[number]) == pytest.approx(expected, rel=1e-12)


def test_even_loads_give_1_and_a_router_that_always_chooses_the_same_more() -> None:
    document_N, size_D = torch.zeros(8, dtype=torch.int64), torch.tensor([8])
    in_turn = torch.stack((torch.arange(8), (torch.arange(8) + 1) % 8), dim=1)
    assert float(document_balance(torch.ones(8, 8), in_turn, document_N, size_D)) == pytest.approx(1.0)
    sure = torch.full((8, 8), 1e-9).index_fill(1, torch.tensor([2, 5]), 1.0)
    same = torch.tensor([[2, 5]]).expand(8, 2)
    assert float(document_balance(sure, same, document_N, size_D)) == pytest.approx(8 / 2)


def test_every_layer_is_seen_while_it_is_watched() -> None:
    model = tiny_model(**MODEL)
    layout = lay_out(some_documents(), 4, (EOS,), copies=2)
    balance, even = DocumentBalance(layout), len(layout.documents) * len(routers(model))
    with balance.watching(model):
        noisy_hidden(model, layout, noise(layout))
    noisy_hidden(model, layout, noise(layout))
    assert even < float(balance.total.detach()) < even * 8 / 2


def test_a_router_that_is_trained_beside_adapters_is_seen_once() -> None:
    plain = tiny_model(**MODEL)
    layout = lay_out(some_documents(), 4, (EOS,))
    expected, found = DocumentBalance(layout), DocumentBalance(layout)
    with expected.watching(plain):
        noisy_hidden(plain, layout, noise(layout))
    adapted = add_lora(copy.deepcopy(plain), LoraConfig(train_router=True))
    with found.watching(adapted):
        noisy_hidden(adapted, layout, noise(layout))
    assert float(found.total.detach()) == pytest.approx(float(expected.total.detach()), rel=1e-9)
    found.total.backward()
    gates = {name for name, p in adapted.named_parameters() if p.grad is not None and ".mlp.gate." in name}
    assert len(gates) == len(routers(plain))


def test_recomputed_layers_count_once_and_have_the_same_gradient() -> None:
    plain, again = (
        trained(Case(parallel=ParallelConfig(recompute=recompute), balance_weight=0.5)) for recompute in (False, True)
    )
    for key in ("loss", "router_balance", "gradient_norm"):
        assert [line[key] for line in again] == pytest.approx([line[key] for line in plain], rel=1e-9)


def test_its_gradient_evens_out_the_loads_of_documents() -> None:
    model = tiny_model(**MODEL).train()
    layout = lay_out(some_documents(), 4, (EOS,))
    optimizer = torch.optim.Adam([router.weight for router in routers(model)], lr=0.05)
    totals = []
    for _ in range(15):
        balance = DocumentBalance(layout)
        with balance.watching(model):
            noisy_hidden(model, layout, noise(layout))
        optimizer.zero_grad()
        balance.total.backward()
        optimizer.step()
        totals.append(float(balance.total.detach()) / (len(layout.documents) * len(routers(model))))
    assert totals[-1] - 1 < 0.6 * (totals[0] - 1)


def test_a_step_reports_it_before_its_weight(tmp_path: Path) -> None:
    run = open_run(recipe(tmp_path, "objective.balance_weight=30"))
    for line in (train_step(run), train_step(run)):
        assert line["loss"] == pytest.approx(line["draft_loss"] + line["edit_loss"] + 30 * line["router_balance"])
        assert line["router_balance"] == pytest.approx(1.0, abs=0.1)  # one layer, whose router knows nothing yet


def test_a_model_without_trained_routers_is_refused(tmp_path: Path) -> None:
    dense = TINY[0].replace("num_experts: 4", "num_experts: 4, first_k_dense_replace: 2")
    with pytest.raises(ConfigError, match=r"objective\.balance_weight is for models with routers"):
        open_run(recipe(tmp_path, dense, "objective.balance_weight=0.1"))
    with pytest.raises(ConfigError, match=r"objective\.balance_weight must be 0 with lora.*lora\.train_router"):
        recipe(tmp_path, "lora={}", "optimizer.kind=adamw", "objective.balance_weight=0.1")
    recipe(tmp_path, "lora={train_router: true}", "optimizer.kind=adamw", "objective.balance_weight=0.1")
