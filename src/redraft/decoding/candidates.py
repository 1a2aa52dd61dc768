"""Candidates: one proposed token a position, with its confidence; and what they are asked by.

Shapes: L positions of a block, W of them wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from redraft.decoding.canvas import Canvas
from redraft.decoding.logprobs import Logprobs
from redraft.types import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """token: int64 [L]. prob: float [L], its confidence: softmax at temperature 1 over all ids, of logits with bias
    and penalties. finite: bool [L], whether every logit that the model gave for the position is. logprobs: when the
    request asked for them. A position that wasn't wanted proposes its own token with its own confidence."""

    token: np.ndarray
    prob: np.ndarray
    finite: np.ndarray
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """How the candidates of one choice are chosen. banned: ids that are never proposed (the mask id and other control
    ids). temperature 0 is greedy; else drafts are drawn, keyed by (seed, choice, block, step, position). The other
    fields are those of `SamplingParams`."""

    banned: tuple[int, ...]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stutter_penalty: float = 0.0
    logprobs: int | None = None

    @classmethod
    def of(cls, params: SamplingParams, banned: tuple[int, ...], *, seed: int = 0, choice: int = 0) -> Selection:
        return cls(
            banned,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=seed,
            choice=choice,
            logit_bias=params.logit_bias or {},
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            stutter_penalty=params.stutter_penalty,
            logprobs=params.logprobs,
        )

    @property
    def counts_tokens(self) -> bool:
        """Whether `Ask.counts` matters."""
        return bool(self.presence_penalty or self.frequency_penalty)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What one block wants to know of a forward.

    wanted: int64 [W], rising positions of the block whose hidden states are given (`policy.wanted(canvas)`).
    left: the token before the block, None at the start of the sequence; the stutter penalty looks at it.
    counts: how often each token stands in the committed blocks of the answer, for presence and frequency penalties.
    """

    canvas: Canvas
    selection: Selection
    wanted: np.ndarray
    left: int | None = None
    counts: Mapping[int, int] = field(default_factory=dict)
