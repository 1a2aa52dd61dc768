"""What is replayed is what the engine's model read and wrote, step by step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.rl.test_likelihood import DRAWS, SMALL, log_p
from tests.tiny import tiny_model
from tests.training.test_layout import MASK

from redraft.engine.llm import LLM
from redraft.model.network import LLaDA2
from redraft.rl.composite import LikelihoodConfig, composite
from redraft.rl.likelihood import likelihood
from redraft.rl.trajectory import Trajectory, trajectories
from redraft.types import CanvasEvent, Sample, SamplingParams

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def answered() -> tuple[LLaDA2, Sample, Trajectory]:
    """A drawn answer of several blocks in speed mode, whose edits are free."""
    model = tiny_model(**SMALL)
    llm = LLM.from_model(model)
    params = SamplingParams(mode="speed", temperature=1.0, seed=4, max_tokens=15, edit_threshold=0.0)
    events = list(llm.stream(PROMPT, params))
    assert events[-1].completion is not None
    ids = [*PROMPT, *events[-1].completion.token_ids]
    sample = Sample(np.array(ids, np.int32), np.arange(len(ids)) >= len(PROMPT), 7)
    return model, sample, trajectories(events, MASK)[0, 0]


def test_states_follow_each_other_from_masks_to_the_answer(answered: tuple[LLaDA2, Sample, Trajectory]) -> None:
    _, sample, trajectory = answered
    assert trajectory.steps > len(trajectory.blocks) > 2
    edits = 0
    for block, states in trajectory.blocks.items():
        own = np.arange(block * 4, block * 4 + 4) >= len(PROMPT)
        assert (states[0].masked == own).all()
        for before, state in pairwise(states):
            assert (before.after == state.tokens).all()
        for state in states:
            assert (state.tokens != state.after)[~state.written].sum() == 0
            edits += int((state.written & ~state.masked).sum())
        final = sample.tokens[block * 4 : block * 4 + 4]
        assert (states[-1].after[: len(final)] == final).all()
    assert edits > 0


def test_steps_replay_every_written_token_at_what_the_model_read(
    answered: tuple[LLaDA2, Sample, Trajectory],
) -> None:
    model, sample, trajectory = answered
    config = LikelihoodConfig(levels=trajectory.steps, noise="steps")  # enough to leave no step out
    batch = composite([sample], config, DRAWS, {7: trajectory})
    expected, written = 0.0, 0
    for block, states in trajectory.blocks.items():
        for state in states:
            here = [i for i in range(4) if state.written[i] and block * 4 + i < len(sample.tokens)]
            written += len(here)
            predicted = log_p(model, sample.tokens[: block * 4], state.tokens)
            expected += sum(float(predicted[i, state.after[i]]) for i in here)
    assert len(batch.weight_K) == written
    with torch.no_grad():
        assert float(likelihood(model, batch).by_document[0]) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("edits", [False, True])
def test_trajectory_levels_ask_for_the_final_tokens_in_states_of_decoding(
    answered: tuple[LLaDA2, Sample, Trajectory], edits: bool
) -> None:
    model, sample, trajectory = answered
    batch = composite([sample], LikelihoodConfig(levels=2, noise="trajectory", edits=edits), DRAWS, {7: trajectory})
    layout, noisy = batch.layout, batch.noisy
    assert torch.equal(batch.target_MN, layout.target_MN)
    total = 0.0
    for unit, block in enumerate(layout.block_U.tolist()):
        here = torch.nonzero(layout.unit_N == unit).flatten()
        read = {tuple(state.tokens[: len(here)]) for state in trajectory.blocks[block]}
        for copy in range(2):
            seen = noisy.tokens_MN[copy, here]
            weight = batch.weight_MN[copy, here]
            if not weight.any():
                continue
            assert tuple(seen.tolist()) in read
            assert (weight[seen == layout.target_N[here]] == 0).all()
            if not edits:
                assert (weight[seen != MASK] == 0).all()
            terms = log_p(model, sample.tokens[: block * 4], seen.numpy()).gather(1, layout.target_N[here, None])
            total += float((weight * terms.squeeze(1)).sum())
    with torch.no_grad():
        assert float(likelihood(model, batch).by_document[0]) == pytest.approx(total, rel=1e-10)


def test_with_fewer_levels_than_steps_every_step_is_as_likely(answered: tuple[LLaDA2, Sample, Trajectory]) -> None:
    model, sample, trajectory = answered
    many = [replace(sample, index=i) for i in range(300)]
    steps = LikelihoodConfig(levels=trajectory.steps, noise="steps")
    with torch.no_grad():
        whole = likelihood(model, composite([sample], steps, DRAWS, {7: trajectory})).by_document
        few = composite(many, replace(steps, levels=1), DRAWS, dict.fromkeys(range(300), trajectory))
        drawn = likelihood(model, few).by_document
    assert drawn.std() > 0
    assert abs(drawn.mean() - whole[0]) < 3.5 * drawn.std() / 300**0.5


def test_choices_and_requests_are_kept_apart() -> None:
    events = [
        CanvasEvent(request, choice, 0, 0, (9, 8, choice, MASK), (1.0,) * 4, (3,), drafted=(2,), prompt=(0, 1))
        for request in range(2)
        for choice in range(2)
    ]
    found = trajectories(events, MASK)
    assert found.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    (state,) = found[1, 1].blocks[0]
    assert state.tokens.tolist() == [9, 8, MASK, MASK] and state.after.tolist() == [9, 8, 1, MASK]
    assert state.written.tolist() == [False, False, True, False]
