"""EBPO: policy optimisation with the ELBO in the place of the likelihood (LLaDA2.1 report, section 3.2, equations 4-5).

    log ρ = Σ_n w_n Σ_b [log p_θ(y^b | z_n, x) - log p_old(y^b | z_n, x)]       the same noise z_n for both
    J     = min(ρ Â, clip(ρ, 1 - ε_low, 1 + ε_high) Â)

Two relatives are settings of the same function. With `likelihood.noise: sequence`, ε_low = ε_high and `kl` it is ESPO's
sequence-level ratio divided by the length. With `ratio: token` and `likelihood.noise: steps`, which replays the tokens
that decoding wrote, it is TraceRL's (Wang et al. 2025, arXiv 2509.06949).

Shapes: K terms, D responses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.errors import ConfigError
from redraft.rl.likelihood import Likelihood


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """ratio: "sequence", one ρ for a response; or "token", one for each term, whose losses a response averages.
    by_length: log ρ of a sequence is divided by the tokens of the response. clip_low, clip_high: ε below and above 1.
    limit: log ρ is clamped to ± this before the exponential. kl: weight of ½ (log ratio)² to the policy that the run
    started from (Schulman's k2), in the same units as log ρ; 0 needs no such reference."""

    ratio: str = "sequence"
    by_length: bool = True
    clip_low: float = 0.01
    clip_high: float = 0.02
    limit: float = 5.0
    kl: float = 0.0

    def __post_init__(self) -> None:
        if self.ratio not in ("sequence", "token"):
            raise ConfigError(f'loss.ratio must be "sequence" or "token", got {self.ratio!r}')
        if not 0 < self.clip_low < 1:
            raise ConfigError(f"loss.clip_low must be above 0 and below 1, got {self.clip_low}")
        if not 0 < self.clip_high < float("inf"):
            raise ConfigError(f"loss.clip_high must be a number above 0, got {self.clip_high}")
        if not 0 < self.limit <= 50:
            raise ConfigError(f"loss.limit must be above 0 and at most 50, got {self.limit}")
        if not 0 <= self.kl < float("inf"):
            raise ConfigError(f"loss.kl must be a number of at least 0, got {self.kl}")


@dataclass(frozen=True)
class PolicyLoss:
    """total: the sum over the responses, to be divided by their number over the whole batch. log_ratio_D, clipped_D:
    of each response, without gradient; of terms these are means. sums: for `report`."""

    total: Tensor
    log_ratio_D: Tensor
    clipped_D: Tensor
    sums: dict[str, float]


def policy_loss(
    new: Likelihood,
    old_K: Tensor,
    advantage_D: Tensor,
    config: LossConfig,
    *,
    behaviour_D: Tensor | None = None,
    reference_K: Tensor | None = None,
) -> PolicyLoss:
    """EBPO's loss, to be minimised.

    old_K: stored log-probabilities of the terms under the policy at the start of the batch. advantage_D: Â.
    behaviour_D: weight of each for having been sampled by an older policy (`behaviour_weight`); None: 1. reference_K:
    log-probabilities of the terms under the policy that the run started from, needed with `config.kl`.
    """
    batch = new.composite
    if config.kl and reference_K is None:
        raise ConfigError(f"loss.kl {config.kl} needs the log-probabilities of a reference, got none")
    weight_D = torch.ones_like(advantage_D) if behaviour_D is None else behaviour_D
    if config.ratio == "sequence":
        scale_D = batch.length_D if config.by_length else torch.ones_like(batch.length_D)
        log_ratio_D = batch.by_document(new.log_p_K - old_K) / scale_D
        objective_D, clipped_D = clipped_objective(log_ratio_D, advantage_D, config)
    else:
        log_ratio_K = new.log_p_K - old_K
        objective_K, clipped_K = clipped_objective(log_ratio_K, advantage_D[batch.document_K], config)
        objective_D, clipped_D = _mean(new, objective_K), _mean(new, clipped_K.to(objective_K.dtype))
        log_ratio_D = _mean(new, log_ratio_K)
    loss_D = -weight_D * objective_D
    sums = {}
    if config.kl and reference_K is not None:
        moved_K = new.log_p_K - reference_K
        if config.ratio == "sequence":
            k2_D = 0.5 * (batch.by_document(moved_K) / scale_D) ** 2
        else:
            k2_D = _mean(new, 0.5 * moved_K**2)
        loss_D = loss_D + config.kl * k2_D
        sums["reference_kl"] = float(k2_D.detach().sum())
    with torch.no_grad():
        log_ratio_D = log_ratio_D.detach()
        clipped_D = clipped_D.to(log_ratio_D.dtype)
        limited_D = log_ratio_D.clamp(-config.limit, config.limit)
        sums |= {
            "loss": float(loss_D.sum()),
            "clipped": float(clipped_D.sum()),
            "log_ratio": float(log_ratio_D.sum()),
            "log_ratio_squared": float((log_ratio_D**2).sum()),
            "kl": float((limited_D.exp() - 1 - limited_D).sum()),
            "responses": float(len(log_ratio_D)),
        }
        if new.entropy_K is not None:
            sums |= {"entropy": float(new.entropy_K.sum()), "terms": float(len(new.entropy_K))}
    return PolicyLoss(loss_D.sum(), log_ratio_D, clipped_D, sums)


def clipped_objective(log_ratio: Tensor, advantage: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """min(ρ Â, clip(ρ) Â) of each, and whether the clip took the gradient away. Clipped in the log domain."""
    low, high = _log_bounds(config)
    ratio = log_ratio.clamp(-config.limit, config.limit).exp()
    bounded = log_ratio.clamp(low, high).exp()
    clipped = ((advantage > 0) & (log_ratio > high)) | ((advantage < 0) & (log_ratio < low))
    return torch.where(clipped, bounded, ratio) * advantage, clipped


def behaviour_weight(old_D: Tensor, behaviour_D: Tensor, length_D: Tensor, config: LossConfig, cap: float) -> Tensor:
    """Truncated importance weight of p_old against the older policy that sampled (decoupled PPO), at most `cap`; both
    bounds by the same noise, in the units of log ρ. Without gradient."""
    log_weight_D = (old_D - behaviour_D).detach()
    if config.by_length:
        log_weight_D = log_weight_D / length_D
    return log_weight_D.clamp(-config.limit, config.limit).exp().clamp(max=cap)


def report(sums: dict[str, float]) -> dict[str, float]:
    """Metrics of an update from its summed statistics.

    clipped: share of responses (of terms, with `ratio: token`) whose gradient the clip took away. log_ratio,
    log_ratio_spread: mean and standard deviation over the responses. kl: mean of ρ - 1 - log ρ, an estimate of the
    divergence from the policy at the start of the batch, in the units of log ρ. entropy: of a predicted token, nats.
    """
    count = max(1.0, sums["responses"])
    mean = sums["log_ratio"] / count
    out = {
        "loss": sums["loss"] / count,
        "clipped": sums["clipped"] / count,
        "log_ratio": mean,
        "log_ratio_spread": max(0.0, sums["log_ratio_squared"] / count - mean**2) ** 0.5,
        "kl": sums["kl"] / count,
        "entropy": sums["entropy"] / max(1.0, sums["terms"]),
    }
    return out | ({"reference_kl": sums["reference_kl"] / count} if "reference_kl" in sums else {})


def _log_bounds(config: LossConfig) -> tuple[float, float]:
    one = torch.ones((), dtype=torch.float64)
    return float(torch.log(one - config.clip_low)), float(torch.log(one + config.clip_high))


def _mean(new: Likelihood, x_K: Tensor) -> Tensor:
    """[D]: weighted means over the terms of each response."""
    batch = new.composite
    return batch.by_document(x_K) / batch.by_document(torch.ones_like(x_K))
