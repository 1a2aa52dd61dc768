"""DPO on the bound: its start, its gradient, and that it learns to prefer."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model
from tests.training.test_layout import EOS, MASK, MODEL, conversation
from tests.training.test_objective import _fixed_routes

from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.model.router import routers
from redraft.training import preference
from redraft.training.layout import lay_out
from redraft.training.likelihood import document_elbo, elbo_masks
from redraft.training.lora import LoraConfig, add_lora, is_adapted
from redraft.training.objective import Draws
from redraft.training.preference import PreferenceConfig, PreferenceObjective, adapters_off
from redraft.types import Pair, Sample

DRAWS = Draws(seed=3, step=5, mask_id=MASK, eos_ids=(EOS,), block_length=4, replacements=np.arange(40))
SMALL: dict[str, Any] = MODEL | {"num_hidden_layers": 2}


def pairs(count: int = 3, first: int = 100) -> list[Pair]:
    rng = np.random.default_rng(first)
    out = []
    for i in range(first, first + count):
        prompt = rng.integers(0, 40, 3 + i % 4)
        chosen, rejected = (
            Sample(np.concatenate((prompt, answer)), np.arange(len(prompt) + len(answer)) >= len(prompt), index)
            for index, answer in (
                (i + number * 2**40, conversation(rng, [(0, 5 + (i + number) % 3)]).tokens) for number in range(2)
            )
        )
        out.append(Pair(chosen, rejected, i))
    return out


def frozen_reference(model: LLaDA2) -> LLaDA2 | None:
    """A copy of a network that is about to be trained, unless its adapters can be switched off instead."""
    return None if is_adapted(model) else copy.deepcopy(model).eval().requires_grad_(False)


def objective(model: LLaDA2, copies: int = 2, **config: float) -> PreferenceObjective:
    return PreferenceObjective(PreferenceConfig(**config), copies, 4, frozen_reference(model))


def shifted(model: LLaDA2, size: float = 0.02) -> LLaDA2:
    """The network, moved a little away from where it started."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def measured(model: LLaDA2, trained: PreferenceObjective, items: list[Pair]) -> dict[str, float]:
    item = trained.prepare(model, items, DRAWS)
    _, sums = trained.loss(model, item, item.counts)
    return trained.report(sums, item.counts)


def test_at_the_start_the_loss_is_log_2_and_the_margin_0() -> None:
    model = tiny_model(**SMALL)
    out = measured(model, objective(model), pairs())
    assert out["loss"] == out["preference_loss"] == pytest.approx(math.log(2), abs=1e-12)
    assert out["margin"] == out["reward_accuracy"] == out["chosen_reward"] == out["rejected_reward"] == 0


def test_policy_and_reference_see_the_same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny_model(**SMALL), []
    trained = objective(model)

    def remembered(network: LLaDA2, layout: Any, noisy: Any) -> torch.Tensor:
        seen.append((network, noisy.tokens_MN))
        return document_elbo(network, layout, noisy)

    monkeypatch.setattr(preference, "document_elbo", remembered)
    measured(model, trained, pairs())
    (first, first_MN), (second, second_MN) = seen
    assert first is trained.reference and second is model
    assert torch.equal(first_MN, second_MN) and bool((first_MN == MASK).any())


def test_the_loss_is_that_of_the_definition() -> None:
    model = tiny_model(**SMALL)
    trained = objective(model, beta=0.3, chosen_weight=0.2)
    shifted(model)
    items = pairs()
    wanted = {"preference": 0.0, "margin": 0.0, "won": 0.0, "chosen": 0.0}
    assert trained.reference is not None
    for pair in items:
        change = []
        for side in (pair.chosen, pair.rejected):
            layout = lay_out([side], 4, (EOS,), copies=2)
            noisy = elbo_masks(layout, seed=3, step=5, mask_id=MASK)
            with torch.no_grad():
                policy, reference = (float(document_elbo(m, layout, noisy)) for m in (model, trained.reference))
            change.append(policy - reference)
            wanted["chosen"] -= policy if side is pair.chosen else 0.0
        margin = 0.3 * (change[0] - change[1])
        wanted["preference"] += math.log1p(math.exp(-margin)) / len(items)
        wanted["margin"] += margin / len(items)
        wanted["won"] += (margin > 0) / len(items)
    out = measured(model, trained, items)
    chosen = wanted["chosen"] / sum(int(pair.chosen.supervised.sum()) for pair in items)
    assert out["loss"] == pytest.approx(wanted["preference"] + 0.2 * chosen, rel=1e-9)
    assert out["chosen_loss"] == pytest.approx(chosen, rel=1e-9)
    assert out["margin"] == pytest.approx(wanted["margin"], rel=1e-7) and out["margin"] != 0
    assert out["reward_accuracy"] == pytest.approx(wanted["won"])
    assert out["chosen_reward"] - out["rejected_reward"] == pytest.approx(out["margin"], rel=1e-9)


def test_the_sums_of_forwards_add_up() -> None:
    """Pairs packed otherwise, as with gradient accumulation or several processes, give the same loss and gradient."""
    model = tiny_model(**SMALL)
    trained, items = objective(model, chosen_weight=0.5), pairs(3)
    shifted(model)
    results = []
    for parts in ([items], [items[:1], items[1:]], [items[2:], items[:2]]):
        prepared = [trained.prepare(model, part, DRAWS) for part in parts]
        counts = {name: sum(item.counts[name] for item in prepared) for name in prepared[0].counts}
        model.zero_grad(set_to_none=True)
        sums: list[dict[str, float]] = []
        for item in prepared:
            loss, of_item = trained.loss(model, item, counts)
            loss.backward()
            sums.append(of_item)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append((trained.report({n: sum(s[n] for s in sums) for n in sums[0]}, counts), gradient))
    for report, gradient in results[1:]:
        assert report == pytest.approx(results[0][0], rel=1e-9)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-9, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(**SMALL)
    trained = objective(model, beta=0.5, chosen_weight=0.3)
    shifted(model)
    item = trained.prepare(model, pairs(2), DRAWS)

    def loss() -> torch.Tensor:
        return trained.loss(model, item, item.counts)[0]

    loss().backward()
    rng, step = np.random.default_rng(0), 1e-6
    chosen = [(p, int(rng.integers(p.numel()))) for p in model.parameters() if p.grad is not None]
    routes = _fixed_routes(model, monkeypatch, loss)
    for parameter, i in chosen:
        flat = parameter.data.view(-1)
        before, values = flat[i].item(), []
        for sign in (1, -1):
            flat[i] = before + sign * step
            routes.rewind()
            values.append(float(loss().detach()))
        flat[i] = before
        assert parameter.grad is not None
        numeric = (values[0] - values[1]) / (2 * step)
        assert numeric == pytest.approx(parameter.grad.view(-1)[i].item(), abs=2e-6, rel=1e-4)


@pytest.mark.parametrize(("lora", "count"), [(False, 100), (True, 25)])
def test_on_100_pairs_the_loss_falls_and_the_margin_rises(lora: bool, count: int) -> None:
    sizes: dict[str, Any] = SMALL | {"dtype": torch.float32}
    model = tiny_model(**sizes).train()
    if lora:
        add_lora(model, LoraConfig(rank=4, alpha=8.0))
    trained, items = objective(model), pairs(count)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-2 if lora else 1e-2)
    for step in range(6):
        batch = items[(step * 25) % count :][:25]
        item = trained.prepare(model, batch, replace(DRAWS, step=step))
        loss, _ = trained.loss(model, item, item.counts)
        assert step > 0 or float(loss.detach()) == pytest.approx(math.log(2), abs=1e-4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = measured(model, trained, items)  # by masks that no step had
    assert after["loss"] < math.log(2) - 0.04 and after["margin"] > 0.15 and after["reward_accuracy"] > 0.6


def test_without_a_copy_the_reference_is_the_network_with_its_adapters_off() -> None:
    plain, model = tiny_model(**SMALL), add_lora(tiny_model(**SMALL), LoraConfig(rank=2, train_router=True))
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    trained = objective(model)
    assert trained.reference is None
    assert measured(model, trained, pairs())["margin"] == 0
    shifted(model, 0.1)
    item = trained.prepare(model, pairs(), DRAWS)
    with torch.no_grad():
        layout = lay_out([side for pair in pairs() for side in (pair.chosen, pair.rejected)], 4, (EOS,), copies=2)
        expected = document_elbo(plain, layout, elbo_masks(layout, seed=3, step=5, mask_id=MASK))
    torch.testing.assert_close(item.reference_P2.flatten(), expected, rtol=0, atol=1e-10)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == trainable
    trained.loss(model, item, item.counts)[0].backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_adapters_come_back_after_an_error() -> None:
    model = shifted(add_lora(tiny_model(**SMALL), LoraConfig(rank=2)), 0.1)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    one = torch.zeros((1, 4), dtype=torch.int64)

    def output() -> torch.Tensor:
        from redraft.model.attention import MaskedAttention

        with torch.no_grad():
            return model(one, one, MaskedAttention(), one)

    adapted = output()
    with pytest.raises(KeyError), adapters_off(model):
        assert not torch.equal(output(), adapted)
        raise KeyError
    assert torch.equal(output(), adapted)
    assert before == {name: p.requires_grad for name, p in model.named_parameters()}


def test_the_reference_is_frozen_and_counts_no_load() -> None:
    model = tiny_model(**SMALL).train()
    trained = objective(model)
    assert trained.reference is not None
    assert not any(p.requires_grad for p in trained.reference.parameters())
    before = {name: p.clone() for name, p in trained.reference.named_parameters()}
    shifted(model)
    item = trained.prepare(model, pairs(), DRAWS)
    loads = [router.load for router in routers(model)]
    assert loads and not any(bool(load.any()) for load in loads)
    trained.loss(model, item, item.counts)[0].backward()
    assert all(bool(load.any()) for load in loads)
    assert all(torch.equal(p, before[name]) for name, p in trained.reference.named_parameters())


@pytest.mark.parametrize(
    ("values", "says"),
    [({"beta": 0.0}, "beta"), ({"beta": math.inf}, "beta"), ({"chosen_weight": -1.0}, "chosen_weight")],
)
def test_settings_out_of_range_are_refused(values: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PreferenceConfig(**values)
