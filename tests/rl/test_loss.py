"""EBPO: ρ is 1 at the stored policy, its gradient that of the policy, and the clip acts where it should."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.rl.test_likelihood import DRAWS, MODES, SMALL, response
from tests.tiny import tiny_model
from tests.training.test_layout import some_documents
from torch import Tensor

from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.rl.advantage import group_advantages
from redraft.rl.composite import Composite, LikelihoodConfig, composite
from redraft.rl.likelihood import Likelihood, likelihood, stored
from redraft.rl.loss import LossConfig, behaviour_weight, clipped_objective, policy_loss, report

WIDE = LossConfig(clip_low=0.9, clip_high=9.0)
ADVANTAGE = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.25, -2.0], dtype=torch.float64)


def opened(config: LikelihoodConfig = MODES[0], dtype: torch.dtype = torch.float64) -> tuple[LLaDA2, Composite]:
    settings: dict[str, Any] = SMALL | {"dtype": dtype}
    return tiny_model(**settings).train(), composite(some_documents(), config, DRAWS)


def loss_of(model: LLaDA2, batch: Composite, old_K: Tensor, config: LossConfig = WIDE, **more: Any) -> Any:
    advantage = ADVANTAGE.to(old_K.dtype)
    return policy_loss(likelihood(model, batch, entropy=True), old_K, advantage, config, **more)


def gradient(model: LLaDA2) -> Tensor:
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(grads)


@pytest.mark.parametrize("likelihood_config", MODES[:2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ratio", ["sequence", "token"])
def test_the_ratio_is_exactly_one_against_the_stored_values(
    likelihood_config: LikelihoodConfig, dtype: torch.dtype, ratio: str
) -> None:
    model, batch = opened(likelihood_config, dtype)
    (old_K,) = stored(model, [batch])
    out = loss_of(model, batch, old_K, replace(WIDE, ratio=ratio))
    assert (out.log_ratio_D == 0).all() and not out.clipped_D.any()
    assert out.sums["kl"] == out.sums["clipped"] == out.sums["log_ratio_squared"] == 0
    assert float(out.total) == pytest.approx(-float(ADVANTAGE.sum()), rel=1e-6)


@pytest.mark.parametrize("by_length", [True, False])
def test_at_the_stored_policy_the_gradient_is_the_policy_gradient(by_length: bool) -> None:
    model, batch = opened()
    (old_K,) = stored(model, [batch])
    loss_of(model, batch, old_K, replace(WIDE, by_length=by_length)).total.backward()
    ours = gradient(model)
    scale = batch.length_D if by_length else 1
    (-(ADVANTAGE * likelihood(model, batch).by_document / scale).sum()).backward()
    torch.testing.assert_close(ours, gradient(model), rtol=1e-10, atol=1e-12)


def test_lengths_are_those_of_the_responses() -> None:
    _, batch = opened()
    assert batch.length_D.tolist() == [int(s.supervised.sum()) for s in some_documents()]


def shifted(old_K: Tensor, log_ratio_D: Tensor, batch: Composite) -> Tensor:
    """Stored values against which each response has this log ratio (divided by the length) at the present policy."""
    total_D = batch.by_document(torch.ones_like(old_K))
    return old_K - (log_ratio_D * batch.length_D / total_D)[batch.document_K]


def test_the_clip_takes_the_gradient_on_both_sides_for_the_sign_that_it_is_for() -> None:
    model, batch = opened()
    (own_K,) = stored(model, [batch])
    config = LossConfig(clip_low=0.2, clip_high=0.3)
    # Below, inside and above the bounds, for both signs of the advantage.
    log_ratio = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.1, -0.1], dtype=torch.float64)
    old_K = shifted(own_K, log_ratio, batch)
    new = likelihood(model, batch, entropy=True)
    out = policy_loss(new, old_K, ADVANTAGE, config)
    torch.testing.assert_close(out.log_ratio_D, log_ratio)
    assert out.clipped_D.tolist() == [1, 0, 0, 1, 0, 0]
    (slope_K,) = torch.autograd.grad(out.total, new.log_p_K)
    reached_D = batch.by_document(slope_K.abs())
    assert ((reached_D == 0) == (out.clipped_D == 1)).all()
    ratio = log_ratio.exp()
    bounded = torch.where(out.clipped_D == 1, ratio.clamp(0.8, 1.3), ratio)
    assert float(out.total) == pytest.approx(-float((bounded * ADVANTAGE).sum()), rel=1e-12)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_objective_is_the_smaller_of_the_two(advantage: float) -> None:
    config = LossConfig(clip_low=0.2, clip_high=0.3, limit=2.0)
    log_ratio = torch.linspace(-3, 3, 601, dtype=torch.float64)
    ours, clipped = clipped_objective(log_ratio, torch.tensor(advantage), config)
    ratio = log_ratio.clamp(-2, 2).exp()
    expected = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
    torch.testing.assert_close(ours, expected)
    assert (clipped == ((log_ratio > math.log(1.3)) if advantage > 0 else (log_ratio < math.log(0.8)))).all()


def probe(value: Callable[[], float], parameter: Tensor, place: int, step: float = 1e-6) -> float:
    flat = parameter.data.view(-1)
    at = float(flat[place])
    sides = []
    for side in (step, -step):
        flat[place] = at + side
        sides.append(value())
    flat[place] = at
    return (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize(
    "config",
    [WIDE, replace(WIDE, by_length=False), replace(WIDE, ratio="token"), replace(WIDE, kl=0.7)],
    ids=["sequence", "plain sum", "token", "kl"],
)
def test_gradients_match_finite_differences(config: LossConfig) -> None:
    # One dense layer: routes would change by steps.
    one_layer: dict[str, Any] = SMALL | {"num_hidden_layers": 1}
    model, batch = tiny_model(**one_layer), composite(some_documents(), MODES[0], DRAWS)
    (own_K,) = stored(model, [batch])
    reference_K = own_K + 0.03 * torch.randn_like(own_K)
    old_K = own_K + 0.01 * torch.randn_like(own_K)
    weight_D = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.25, 1.0], dtype=torch.float64)

    def total() -> Tensor:
        return loss_of(model, batch, old_K, config, behaviour_D=weight_D, reference_K=reference_K).total

    total().backward()
    for name in ("word_embeddings.weight", "layers.0.attention.dense.weight", "lm_head.weight"):
        parameter = model.get_parameter(name)
        assert parameter.grad is not None
        place = int(parameter.grad.abs().argmax())
        with torch.no_grad():
            measured = probe(lambda: float(total()), parameter, place)
        assert float(parameter.grad.view(-1)[place]) == pytest.approx(measured, rel=1e-4)


def test_a_second_step_on_the_batch_moves_the_ratio_and_clips() -> None:
    model, batch = opened()
    (old_K,) = stored(model, [batch])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    config = LossConfig(clip_low=0.001, clip_high=0.001)
    before = loss_of(model, batch, old_K, config)
    before.total.backward()
    optimizer.step()
    after = loss_of(model, batch, old_K, config)
    assert before.sums["clipped"] == 0 and after.sums["clipped"] > 0
    assert (after.log_ratio_D * ADVANTAGE > 0).any()
    assert after.sums["kl"] > 0


def test_statistics_are_those_of_the_responses() -> None:
    model, batch = opened()
    (own_K,) = stored(model, [batch])
    log_ratio = torch.tensor([0.2, -0.1, 0.05, 0.0, -0.3, 0.4], dtype=torch.float64)
    halves = loss_of(model, batch, shifted(own_K, log_ratio, batch)).sums
    doubled = report({name: 2 * value for name, value in halves.items()})
    out = report(halves)
    assert out == pytest.approx(doubled)
    assert out["log_ratio"] == pytest.approx(float(log_ratio.mean()))
    assert out["log_ratio_spread"] == pytest.approx(float(log_ratio.std(correction=0)))
    assert out["kl"] == pytest.approx(float((log_ratio.exp() - 1 - log_ratio).mean()))
    assert 0 < out["entropy"] < math.log(50)


def test_behaviour_weights_are_truncated_and_multiply_the_loss_of_their_response() -> None:
    model, batch = opened()
    (old_K,) = stored(model, [batch])
    new = likelihood(model, batch, entropy=True)
    weights = behaviour_weight(
        new.by_document, new.by_document - batch.length_D * math.log(3.0), batch.length_D, WIDE, cap=2.0
    )
    assert weights.tolist() == [2.0] * 6 and not weights.requires_grad
    lower = behaviour_weight(
        new.by_document, new.by_document + math.log(2.0), batch.length_D, replace(WIDE, by_length=False), 2.0
    )
    assert lower.tolist() == pytest.approx([0.5] * 6)
    halved = policy_loss(new, old_K, ADVANTAGE, WIDE, behaviour_D=lower).total
    assert float(halved) == pytest.approx(0.5 * float(policy_loss(new, old_K, ADVANTAGE, WIDE).total))


def test_one_level_for_a_sequence_is_the_same_in_all_its_blocks() -> None:
    """ESPO's noise: as an estimate of the bound it is worse than levels by block, which average inside a response."""
    config = LikelihoodConfig(levels=2, noise="sequence")
    samples = [replace(response(11, said=1), index=i) for i in range(200)]
    batch = composite(samples, config, DRAWS)
    masks = torch.stack(
        [batch.noisy.masked_MN[:, batch.layout.unit_N == u].sum(1) for u in range(len(batch.document_U))], dim=1
    ).unflatten(1, (200, 3))
    assert (masks[:, :, 1] == masks[:, :, 2]).all()  # whole blocks of four
    assert len(set(masks[0, :, 1].tolist())) == 4
    model = tiny_model(**SMALL)
    with torch.no_grad():
        one = likelihood(model, batch).by_document
        own = likelihood(model, composite(samples, replace(config, noise="random"), DRAWS)).by_document
    assert abs(one.mean() - own.mean()) < 4 * ((one.var() + own.var()) / 200) ** 0.5
    assert own.var() < one.var()


def test_groups_are_centred_and_equal_ones_teach_nothing() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.2, 0.2, 0.2, 0.2], [0.5, 1.5, 0.5, 1.5]])
    advantages, useful = group_advantages(rewards)
    assert useful.tolist() == [True, False, False, True]
    assert advantages[0].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert (advantages[1:3] == 0).all()
    scaled, _ = group_advantages(rewards, scale=True)
    assert scaled[3].tolist() == pytest.approx([-1.0, 1.0, -1.0, 1.0]) and np.isfinite(scaled.numpy()).all()


@pytest.mark.parametrize(
    "changes",
    [{"ratio": "block"}, {"clip_low": 0.0}, {"clip_low": 1.0}, {"clip_high": 0.0}, {"limit": 0.0}, {"kl": -1.0}],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"loss.{next(iter(changes))} must be"):
        LossConfig(**changes)


def test_a_penalty_needs_its_reference() -> None:
    model, batch = opened()
    new: Likelihood = likelihood(model, batch)
    with pytest.raises(ConfigError, match=r"loss.kl 0.5 needs"):
        policy_loss(new, new.log_p_K.detach(), ADVANTAGE, LossConfig(kl=0.5))
