"""The modes, and how a request's settings become a policy (spec/decoding.md, "Modes: one setting")."""

from __future__ import annotations

from dataclasses import dataclass

from redraft.decoding.m2t import Draft
from redraft.decoding.policy import DraftAndEdit
from redraft.decoding.t2t import Edit
from redraft.types import OFF, SamplingParams

# With drawn drafts, a free edit would put the argmax back at once and undo the sampling.
SAMPLED_EDIT_FLOOR = 0.5


@dataclass(frozen=True, slots=True)
class Mode:
    """threshold for drafts, edit_threshold for edits (None: no editing)."""

    threshold: float
    edit_threshold: float | None


MODES = {
    "speed": Mode(0.5, 0.0),  # LLaDA2.1-mini model card
    "quality": Mode(0.7, 0.5),  # LLaDA2.1-mini model card
    "draft-only": Mode(0.95, None),  # LLaDA2.0 report, section 6.1
}


def policy_of(params: SamplingParams) -> DraftAndEdit:
    """The policy of one request: its own thresholds where it set them, the mode's elsewhere."""
    mode = MODES[params.mode]
    threshold = mode.threshold if params.threshold is None else params.threshold
    return DraftAndEdit(Draft(threshold, params.min_unmask), _edit(params, mode), params.max_post_steps)


def edit_of(params: SamplingParams) -> DraftAndEdit:
    """The policy of a multi-block pass, which only edits: by its own threshold, else that of edits inside a block."""
    if params.mbe_edit_threshold is not None:
        params = params.with_(edit_threshold=params.mbe_edit_threshold)
    return DraftAndEdit(Draft(1.0), _edit(params, MODES[params.mode]), params.mbe_steps)


def _edit(params: SamplingParams, mode: Mode) -> Edit | None:
    stated = params.edit_threshold
    if stated == OFF:
        return None
    if isinstance(stated, (int, float)):
        threshold = stated
    elif mode.edit_threshold is None:
        return None
    else:
        threshold = max(mode.edit_threshold, SAMPLED_EDIT_FLOOR) if params.temperature > 0 else mode.edit_threshold
    # No probability is above 1: the same tokens as without editing, so no forward is spent on looking.
    return Edit(threshold) if threshold < 1 else None
