"""What all requests have in common. A field is honoured or refused by name; none is taken and ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from redraft.engine.named import Modes, with_mode
from redraft.errors import InvalidInput
from redraft.server.errors import UNSUPPORTED, invalid
from redraft.types import SamplingParams

MAX_SEED = 2**63 - 1
Temperature = Annotated[float, Field(ge=0, le=100, description="0 is greedy; above it drafts are drawn.")]
TopP = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Neutral = Mapping[str, tuple[tuple[Any, ...], str]]
Mode = Annotated[str, Field(max_length=64, description="speed, quality, draft-only, or another of the server's.")]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Wire(BaseModel):
    """A JSON object whose types are taken as they are: no text for a number, no NaN, no unknown field.

    neutral: fields that OpenAI's API knows and this one doesn't do, with the values that ask for nothing, which are
    let pass (null always is) and the reason that others are refused for.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _let_neutral_pass(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, (values, why) in cls.neutral.items():
            value = data.get(name)
            if value is not None and not any(value is good or value == good for good in values):
                raise PydanticCustomError(UNSUPPORTED, "not supported", {"name": name, "why": why})
        return {name: value for name, value in data.items() if name not in cls.neutral}


class RedraftOptions(Wire):
    """How the answer is drafted and edited (docs/sampling.md)."""

    mode: Mode | None = None
    threshold: Annotated[float, Field(ge=0)] | None = None
    edit_threshold: Annotated[float, Field(ge=0, le=1)] | Literal["off"] | None = None
    max_post_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    mbe_blocks: Annotated[int, Field(ge=0, le=64)] | None = None
    mbe_steps: Count | None = None
    mbe_edit_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stutter_penalty: Annotated[float, Field(ge=0, le=100)] | None = None
    min_unmask: Count | None = None
    events: bool | None = Field(None, description="Send every step of the canvas too; needs stream.")


class StreamOptions(Wire):
    neutral: ClassVar[Neutral] = {"include_obfuscation": ((False,), "chunks are never padded")}

    include_usage: bool | None = None


class Usage(BaseModel):
    """Tokens of a request. redraft: forwards, tokens_per_forward and edits of all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    redraft: dict[str, float]


class ErrorBody(BaseModel):
    """What every error looks like."""

    class Error(BaseModel):
        message: str
        type: str
        param: str | None
        code: str | None

    error: Error


THRESHOLDS = ("threshold", "edit_threshold")
OPTIONS = [name for name in RedraftOptions.model_fields if name != "events"]


def sampling(
    defaults: Mapping[str, Any],
    modes: Modes,
    fields: Mapping[str, Any],
    options: RedraftOptions | None,
    names: Mapping[str, str],
) -> SamplingParams:
    """The settings of a request: its own, else the checkpoint's, else ours. A mode that the request names outranks
    the checkpoint's thresholds, and one of `modes` whatever it sets. names: what our fields are called in the request,
    where that differs."""
    own = {name: value for name, value in fields.items() if value is not None}
    if options is not None:
        own |= {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    outranked = {*THRESHOLDS, *modes.get(own["mode"], ())} if "mode" in own else set()
    kept = {name: value for name, value in defaults.items() if name not in outranked}
    try:
        return SamplingParams(**with_mode(kept | own, modes))
    except InvalidInput as error:
        first = str(error).split(maxsplit=1)[0]
        named = {name: f"redraft.{name}" for name in OPTIONS} | dict(names)
        raise invalid(str(error), named.get(first, first if first in fields else None)) from None


def bias(value: Mapping[str, float] | None) -> dict[int, float] | None:
    """OpenAI's logit_bias has ids as text."""
    if value is None:
        return None
    found = {}
    for key, number in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise invalid(f"logit_bias: its keys must be token ids, got {key[:40]!r}", "logit_bias")
        found[int(key)] = number
    return found


def events_asked(options: RedraftOptions | None, stream: bool) -> bool:
    """Whether the canvas is wanted; raises ApiError when that can't be."""
    asked = options is not None and bool(options.events)
    if asked and not stream:
        raise invalid("redraft.events: the steps come in a stream only; set stream to true", "redraft.events")
    return asked
