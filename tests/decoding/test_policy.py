from __future__ import annotations

import numpy as np
import pytest

from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.m2t import Draft
from redraft.decoding.modes import MODES, policy_of
from redraft.decoding.policy import DraftAndEdit
from redraft.decoding.t2t import Edit
from redraft.errors import InvalidInput, NumericalError
from redraft.types import SamplingParams

MASK = 99


def candidates(tokens: list[int], probs: list[float]) -> Candidates:
    return Candidates(np.array(tokens), np.array(probs), np.ones(len(tokens), dtype=bool))


def test_draft_is_strict_and_takes_all_above() -> None:
    canvas = Canvas.blank(0, 4, MASK)
    chosen = Draft(0.5).choose(canvas, candidates([1, 2, 3, 4], [0.5, 0.6, 0.4, 0.9]))
    assert chosen.tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("minimum", "expected"), [(1, [1]), (2, [1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_too_few_above_gives_the_most_confident_lowest_position_first(minimum: int, expected: list[int]) -> None:
    canvas = Canvas.blank(0, 4, MASK)
    chosen = Draft(0.95, minimum).choose(canvas, candidates([1, 2, 3, 4], [0.2, 0.5, 0.5, 0.1]))
    assert np.flatnonzero(chosen).tolist() == expected


def test_zero_confidence_still_makes_progress() -> None:
    chosen = Draft(2.0, 2).choose(Canvas.blank(0, 3, MASK, (7,)), candidates([1, 2, 3], [0.9, 0.0, 0.0]))
    assert chosen.tolist() == [False, True, True]


def test_prompt_is_never_written_even_where_it_holds_the_mask_id() -> None:
    canvas = Canvas.blank(0, 4, MASK, (MASK, 8))
    policy = DraftAndEdit(Draft(0.0), Edit(0.0))
    after, change = policy.step(canvas, candidates([1, 2, 3, 4], [1.0] * 4))
    assert after.tokens.tolist() == [MASK, 8, 3, 4]
    assert change == Change(drafted=(2, 3))
    assert after.confidence.tolist() == [1.0] * 4


def test_both_sets_come_from_the_same_logits() -> None:
    canvas, _ = DraftAndEdit(Draft(0.5), Edit(0.5)).step(
        Canvas.blank(0, 3, MASK), candidates([1, 2, 3], [0.9, 0.1, 0.1])
    )
    assert canvas.masked.tolist() == [False, True, True]
    after, change = DraftAndEdit(Draft(0.5), Edit(0.5)).step(canvas, candidates([5, 6, 7], [0.6, 0.8, 0.2]))
    assert after.tokens.tolist() == [5, 6, MASK]
    assert change == Change(drafted=(1,), edited={0: 1})
    assert (canvas.tokens.tolist(), after.step, after.post_steps) == ([1, MASK, MASK], 2, 0)


@pytest.mark.parametrize(("threshold", "edited"), [(0.0, [0, 1]), (0.5, [1]), (0.6, [])])
def test_edit_is_strict_and_zero_edits_freely(threshold: float, edited: list[int]) -> None:
    canvas = Canvas.blank(0, 3, MASK).write(np.ones(3, bool), np.array([1, 2, 3]), np.ones(3))
    chosen = Edit(threshold).choose(canvas, candidates([4, 5, 3], [0.5, 0.6, 1.0]))
    assert np.flatnonzero(chosen).tolist() == edited


def test_without_editing_a_filled_block_is_done() -> None:
    policy = DraftAndEdit(Draft(0.0), None)
    canvas, change = policy.step(Canvas.blank(0, 2, MASK), candidates([1, 2], [0.9, 0.9]))
    assert policy.done(canvas, change)


def test_done_when_a_step_without_masks_edits_nothing() -> None:
    policy = DraftAndEdit(Draft(0.0), Edit(0.0))
    canvas, change = policy.step(Canvas.blank(0, 2, MASK), candidates([1, 2], [0.9, 0.9]))
    assert not policy.done(canvas, change)
    canvas, change = policy.step(canvas, candidates([1, 2], [0.9, 0.9]))
    assert policy.done(canvas, change)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_post_steps_are_limited(limit: int) -> None:
    policy = DraftAndEdit(Draft(0.0), Edit(0.0), limit)
    canvas, change = policy.step(Canvas.blank(0, 1, MASK), candidates([0], [0.9]))
    steps = 0
    while not policy.done(canvas, change):
        steps += 1
        canvas, change = policy.step(canvas, candidates([steps], [0.9]))
    assert steps == limit == canvas.post_steps


def test_logits_that_are_not_finite_are_an_error_that_names_the_position() -> None:
    bad = Candidates(np.array([1, 2]), np.array([0.5, np.nan]), np.array([True, False]))
    with pytest.raises(NumericalError, match="position 1 from block 3 on, step 0"):
        DraftAndEdit(Draft(0.5)).step(Canvas.blank(3, 2, MASK), bad)


@pytest.mark.parametrize(
    ("params", "draft", "edit"),
    [
        (SamplingParams(), 0.7, 0.5),
        (SamplingParams(mode="speed"), 0.5, 0.0),
        (SamplingParams(mode="draft-only"), 0.95, None),
        (SamplingParams(mode="speed", threshold=0.3), 0.3, 0.0),
        (SamplingParams(mode="speed", edit_threshold="off"), 0.5, None),
        (SamplingParams(mode="draft-only", edit_threshold=0), 0.95, 0.0),
        (SamplingParams(edit_threshold=1.0), 0.7, None),
        (SamplingParams(mode="speed", temperature=0.8), 0.5, 0.5),
        (SamplingParams(mode="speed", temperature=0.8, edit_threshold=0.2), 0.5, 0.2),
        (SamplingParams(mode="draft-only", temperature=0.8), 0.95, None),
        (SamplingParams(threshold=1.5, edit_threshold=0.9, temperature=1.0), 1.5, 0.9),
    ],
)
def test_modes_and_what_overrides_them(params: SamplingParams, draft: float, edit: float | None) -> None:
    policy = policy_of(params)
    assert policy.draft == Draft(draft, 1)
    assert policy.edit == (None if edit is None else Edit(edit))


def test_every_mode_has_its_thresholds_and_others_are_refused() -> None:
    for name in MODES:
        policy_of(SamplingParams(mode=name))
    with pytest.raises(InvalidInput, match="fast"):
        SamplingParams(mode="fast")
