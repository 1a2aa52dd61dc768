"""The values that cross borders between packages. Nothing here imports torch at run time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from redraft.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length", "abort"]
OFF = "off"
MODES = ("speed", "quality", "draft-only")


def _number(name: str, value: Any, low: float, high: float, *, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be {allowed}, got {value!r}")
    if not low <= value <= high:
        raise InvalidInput(f"{name} must be {allowed}, got {value!r}")
    return float(value)


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    bound = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise InvalidInput(f"{name} must be {bound}, got {value!r}")
    return value


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"logit_bias must map token ids to numbers from -100 to 100, got {value!r}")
    allowed = "numbers from -100 to 100"
    return {
        _integer("an id in logit_bias", token, 0): _number("logit_bias", bias, -100.0, 100.0, allowed=allowed)
        for token, bias in value.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is decoded. `None` takes the mode's value (see `redraft.decoding.modes`).

    mode: "speed", "quality" or "draft-only".
    threshold: a masked position is drafted when its confidence is strictly above this. Above 1: never by
        confidence, so exactly `min_unmask` positions a step.
    edit_threshold: a drafted position is rewritten when another token's confidence is strictly above this;
        0 edits freely, "off" never edits.
    max_post_steps: steps on a block that began without a mask, at most.
    min_unmask: positions drafted a step at least, while masks remain.
    temperature, top_p, top_k (0: all), seed: sampling of drafts; edits always propose the argmax.
    max_tokens: tokens generated at most. stop, stop_token_ids, ignore_eos: where the text ends.
    logit_bias: added to the logits of these ids, from -100 to 100.
    presence_penalty, frequency_penalty: subtracted from the logit of every token of the answer's committed blocks,
        once and per occurrence; from -2 to 2.
    stutter_penalty: subtracted from the logit of the token immediately to the left, also across the block's border;
        a mask to the left gives none.
    mbe_blocks: written blocks that stay open to edits while the next one is drafted (multi-block editing); 0: none.
    mbe_steps: edit steps at most over them and a block that is done. mbe_edit_threshold: of these edits; None takes
        the one of edits inside a block.
    n: answers to one prompt; each draws with its own numbers.
    logprobs: number of alternatives reported with each token's log-probability at its last write, or None.

    Bias and penalties change the distribution itself: the choice, the confidence that thresholds look at, and
    log-probabilities. Temperature, top_p and top_k change only what a draft is drawn from.
    """

    mode: str = "quality"
    threshold: float | None = None
    edit_threshold: float | str | None = None
    max_post_steps: int = 16
    min_unmask: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int = 256
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stutter_penalty: float = 0.0
    mbe_blocks: int = 0
    mbe_steps: int = 3
    mbe_edit_threshold: float | None = None
    n: int = 1
    logprobs: int | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.mode not in MODES:
            raise InvalidInput(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.threshold is not None:
            put(
                self, "threshold", _number("threshold", self.threshold, 0.0, math.inf, allowed="a number of at least 0")
            )
        if self.edit_threshold is not None and self.edit_threshold != OFF:
            value = _number("edit_threshold", self.edit_threshold, 0.0, 1.0, allowed='a number from 0 to 1, or "off"')
            put(self, "edit_threshold", value)
        _integer("max_post_steps", self.max_post_steps, 0)
        _integer("min_unmask", self.min_unmask, 1)
        put(self, "temperature", _number("temperature", self.temperature, 0.0, 100.0, allowed="a number from 0 to 100"))
        put(self, "top_p", _number("top_p", self.top_p, 0.0, 1.0, allowed="a number above 0, at most 1"))
        if self.top_p == 0.0:
            raise InvalidInput("top_p must be a number above 0, at most 1, got 0.0")
        _integer("top_k", self.top_k, 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**63 - 1)
        _integer("max_tokens", self.max_tokens, 1)
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in stops:
            if not isinstance(text, str) or not text:
                raise InvalidInput(f"stop must be non-empty strings, got {text!r}")
        put(self, "stop", stops)
        ids = tuple(self.stop_token_ids)
        for token in ids:
            _integer("stop_token_ids", token, 0)
        put(self, "stop_token_ids", ids)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidInput(f"ignore_eos must be true or false, got {self.ignore_eos!r}")
        if self.logit_bias is not None:
            put(self, "logit_bias", _bias(self.logit_bias))
        for name in ("presence_penalty", "frequency_penalty"):
            put(self, name, _number(name, getattr(self, name), -2.0, 2.0, allowed="a number from -2 to 2"))
        stutter = _number("stutter_penalty", self.stutter_penalty, 0.0, 100.0, allowed="a number from 0 to 100")
        put(self, "stutter_penalty", stutter)
        self._check_multiblock()
        _integer("n", self.n, 1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, 20)

    def _check_multiblock(self) -> None:
        _integer("mbe_blocks", self.mbe_blocks, 0, 64)
        _integer("mbe_steps", self.mbe_steps, 1)
        own = self.mbe_edit_threshold
        if own is not None:
            own = _number("mbe_edit_threshold", own, 0.0, 1.0, allowed="a number from 0 to 1")
            object.__setattr__(self, "mbe_edit_threshold", own)
            if not self.mbe_blocks:
                raise InvalidInput(f"mbe_edit_threshold has no effect without mbe_blocks, got {own!r}")
        off = self.edit_threshold == OFF or (self.edit_threshold is None and self.mode == "draft-only")
        if self.mbe_blocks and own is None and off:
            raise InvalidInput(
                f"mbe_blocks needs mbe_edit_threshold when editing is off, got mbe_blocks={self.mbe_blocks} without it"
            )

    def with_(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed; an unknown name is an error that names it."""
        known = set(self.__dataclass_fields__)
        for name in changes:
            if name not in known:
                raise InvalidInput(f"unknown sampling field {name!r}; known: {', '.join(sorted(known))}")
        return replace(self, **changes)


@dataclass(slots=True)
class Stats:
    """What one choice cost. Forwards are denoising forwards, prefill apart (spec: "Measures")."""

    forwards: int = 0
    prefill_forwards: int = 0
    drafted: int = 0
    edits: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    seconds_to_first_block: float = 0.0

    @property
    def tokens_per_forward(self) -> float:
        return self.generated_tokens / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural log-probability at its last write (when it was drafted, or last edited), over all ids at
    temperature 1, bias and penalties included. top: the most likely (id, log-probability) of that moment, most likely
    first, ties by lowest id, ids that are never proposed left out; the token itself need not be among them."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. `token_ids` keeps the EOS; `text` drops it and what a stop string cut. logprobs: one for each of
    `token_ids` when the request asked for them."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: Stats
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one prompt; the plain attributes are those of choice 0."""

    prompt_token_ids: list[int]
    choices: list[Choice]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def stats(self) -> Stats:
        return self.choices[0].stats


@dataclass(frozen=True, slots=True)
class CanvasEvent:
    """One step of one block, as seen from outside.

    block: index of the block, counted from the start of the sequence, prompt included.
    tokens, confidence: the whole block after the step; confidence is that of a token's last write (prompt: 1).
    masked, drafted, edited: positions inside the block; `edited` maps a position to its old token.
    frozen: the block is committed, and `text_delta` is the text that this event appends to the answer.
    completion: set on the last event of the request.
    """

    request: int
    choice: int
    step: int
    block: int
    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    masked: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()
    edited: Mapping[int, int] = field(default_factory=dict)
    deleted: tuple[int, ...] = ()
    inserted: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    frozen: bool = False
    text_delta: str = ""
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One training document. tokens: int32 [L]; supervised: bool [L], the positions that carry loss, of which each run
    is a turn that ends with its EOS. index: keys its noise; no other document of the run has it."""

    tokens: np.ndarray
    supervised: np.ndarray
    index: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, for preference training. index: keys the noise of the pair."""

    chosen: Sample
    rejected: Sample
    index: int = 0

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)
