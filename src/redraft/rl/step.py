"""One step of reinforcement learning: answers, advantages, stored likelihoods, updates, metrics."""

from __future__ import annotations

import math
import time
from collections import defaultdict

import torch
from torch import Tensor

from redraft.errors import NumericalError
from redraft.rl.advantage import group_advantages
from redraft.rl.build import RLRun
from redraft.rl.composite import Composite, composites
from redraft.rl.likelihood import likelihood, stored
from redraft.rl.loss import behaviour_weight, policy_loss, report
from redraft.rl.rollout import Rollout
from redraft.rl.samples import write_samples
from redraft.training.precision import autocast, compute_dtype

Line = dict[str, float]


def rl_step(run: RLRun) -> Line:
    """Takes a step; returns its metrics. Groups that teach nothing are left out; where all are, nothing is updated."""
    started = time.monotonic()
    answers = run.answers.take()
    groups = [group.rollouts for group in answers]
    answered = time.monotonic()
    rewards_PG = torch.tensor([[rollout.reward for rollout in group] for group in groups], dtype=torch.float64)
    advantages_PG, useful_P = group_advantages(rewards_PG, scale=run.recipe.batch.scale)
    rollouts = [rollout for group in groups for rollout in group]
    stale = [run.step - group.version for group in answers]
    line = described(rollouts) | {
        "skipped": 1.0 - float(useful_P.double().mean()),
        "staleness": sum(stale) / len(stale),
        **run.answers.metrics(),
    }
    chosen = [
        pair
        for group, advantages, useful in zip(groups, advantages_PG.tolist(), useful_P.tolist(), strict=True)
        if useful
        for pair in zip(group, advantages, strict=True)
    ]
    positions = 0
    if chosen:
        behaviour = {index: bound for group in answers for index, bound in group.behaviour.items()}
        trained, positions = _update(run, chosen, behaviour)
        line |= trained
    write_samples(run.samples, run.step + 1, groups, run.tokenizer)
    run.step += 1
    run.answers.trained()
    ended = time.monotonic()
    run.positions += positions
    run.seconds += ended - started
    return {
        "step": run.step,
        "positions": run.positions,
        "seconds": round(run.seconds, 2),
        "rollout_seconds": round(answered - started, 2),
        "update_seconds": round(ended - answered, 2),
        **line,
    }


def described(rollouts: list[Rollout]) -> Line:
    """What the answers of a step were like. reward and its parts: means over the episodes; response_tokens, over the
    answers; tokens_per_forward and edits_per_100_tokens: of all their tokens together."""
    parts: dict[str, float] = defaultdict(float)
    for rollout in rollouts:
        for name, value in rollout.parts.items():
            parts[name] += value / len(rollouts)
    stats = [step.choice.stats for rollout in rollouts for step in rollout.steps]
    tokens = sum(each.generated_tokens for each in stats)
    complete = sum(step.choice.finish_reason == "stop" for rollout in rollouts for step in rollout.steps)
    return {
        "reward": sum(rollout.reward for rollout in rollouts) / len(rollouts),
        **parts,
        "complete": complete / len(stats),
        "response_tokens": tokens / len(stats),
        "tokens_per_forward": tokens / max(1, sum(each.forwards for each in stats)),
        "edits_per_100_tokens": 100 * sum(each.edits for each in stats) / max(1, tokens),
    }


def _update(run: RLRun, chosen: list[tuple[Rollout, float]], behaviour: dict[int, float]) -> tuple[Line, int]:
    """The optimiser steps on rollouts with their advantages; metrics of the last of them, and positions that were
    trained on. behaviour: bounds of answers under the policy that wrote them, by `Sample.index`; empty where that is
    the present one."""
    recipe, ranks = run.recipe, run.ranks
    steps = [(step, advantage) for rollout, advantage in chosen for step in rollout.steps]
    of_sample = {step.sample.index: advantage for step, advantage in steps}
    paths = {step.sample.index: step.trajectory for step, _ in steps}
    samples = [step.sample for step, _ in steps]
    parts = composites(samples, recipe.likelihood, run.draws, length=recipe.batch.length, trajectories=paths)
    parts = [part.to(ranks.device) for part in parts]
    device = ranks.device.type
    norms, line = [], {}
    with autocast(compute_dtype(recipe.run.precision, device), device):
        old = stored(run.model, parts)
        reference = [None] * len(parts) if run.reference is None else stored(run.reference, parts)
    weights = [_behaviour_weights(run, part, old_K, behaviour) for part, old_K in zip(parts, old, strict=True)]
    for update in range(recipe.batch.updates):
        sums: dict[str, float] = defaultdict(float)
        for part, old_K, weight_D, reference_K in zip(parts, old, weights, reference, strict=True):
            with autocast(compute_dtype(recipe.run.precision, device), device):
                new = likelihood(run.model, part, entropy=True)
                advantage_D = _of(part, of_sample, old_K)
                loss = policy_loss(new, old_K, advantage_D, recipe.loss, behaviour_D=weight_D, reference_K=reference_K)
            (loss.total / len(steps)).backward()
            for name, value in loss.sums.items():
                sums[name] += value
        line = report(sums)
        if not math.isfinite(line["loss"]):
            raise NumericalError(
                f"the loss is not finite at step {run.step}, update {update}; the last checkpoint is untouched"
            )
        try:
            norms.append(run.optimizer.step(recipe.schedule.factor(run.step)))
        except NumericalError as error:
            raise NumericalError(f"step {run.step}, update {update}: {error}") from None
    positions = sum(part.layout.positions for part in parts) * recipe.batch.updates
    line |= {"gradient_norm": sum(norms) / len(norms), "learning_rate_factor": recipe.schedule.factor(run.step)}
    if behaviour:
        line["behaviour_weight"] = float(torch.cat([w for w in weights if w is not None]).mean())
    return line, positions


def _behaviour_weights(run: RLRun, part: Composite, old_K: Tensor, behaviour: dict[int, float]) -> Tensor | None:
    if not behaviour:
        return None
    recipe = run.recipe
    old_D = part.by_document(old_K)
    return behaviour_weight(old_D, _of(part, behaviour, old_D), part.length_D, recipe.loss, recipe.workers.cap)


def _of(part: Composite, values: dict[int, float], like: Tensor) -> Tensor:
    """[D]: each document's value."""
    return torch.tensor([values[d.index] for d in part.layout.documents], dtype=like.dtype, device=like.device)
