"""Rollouts as a person reads them: the best and the worst answer of a step's first group, with every edit."""

from __future__ import annotations

from typing import Any

import numpy as np

from redraft.rl.rollout import Rollout, Step
from redraft.text.tokenizer import Tokenizer
from redraft.training.metrics import MetricsFile


def write_samples(file: MetricsFile, step: int, groups: list[list[Rollout]], tokenizer: Tokenizer) -> None:
    """Two lines of a samples file; groups whose answers differ in reward are preferred."""
    spread = [max(r.reward for r in group) - min(r.reward for r in group) for group in groups]
    group = sorted(groups[int(np.argmax(spread))], key=lambda rollout: rollout.reward)
    for rollout in (group[-1], group[0]):
        file.write(
            step=step,
            prompt=rollout.prompt,
            answer=rollout.answer,
            reward=rollout.reward,
            parts=dict(rollout.parts),
            messages=list(rollout.messages),
            steps=[turn.trajectory.steps for turn in rollout.steps],
            edits=[edits(turn, tokenizer) for turn in rollout.steps],
        )


def edits(turn: Step, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Each rewritten token of an answer: the block, the step on it, the position in it, and the text before and
    after."""
    out = []
    for block, states in turn.trajectory.blocks.items():
        for number, state in enumerate(states):
            for position in np.flatnonzero(state.written & ~state.masked).tolist():
                before, after = (
                    tokenizer.decode([int(x[position])], skip_special=False) for x in (state.tokens, state.after)
                )
                out.append({"block": block, "step": number, "position": position, "from": before, "to": after})
    return out
