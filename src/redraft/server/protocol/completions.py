"""`/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from redraft.server.protocol.base import (
    MAX_SEED,
    Count,
    Neutral,
    Penalty,
    RedraftOptions,
    StreamOptions,
    Temperature,
    TopP,
    Usage,
    Wire,
)
from redraft.server.protocol.text import TokenId

MAX_PROMPTS = 128
Ids = Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(Wire):
    neutral: ClassVar[Neutral] = {
        "best_of": ((1,), "answers aren't ranked"),
        "suffix": (("",), "the model continues a text; it doesn't fill one in"),
    }

    prompt: (
        Annotated[str, Field(description="Plain text; a control string in it stays text.")]
        | Ids
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    model: str | None = Field(None, description="The served model's name; it may be left out.")
    max_tokens: Annotated[Count | None, Field(description="16 by default, as in OpenAI's API.")] = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    user: Annotated[str | None, Field(max_length=512, description="Noted in the log.")] = None
    redraft: RedraftOptions | None = None

    @property
    def several(self) -> list[str | list[int]]:
        """The prompt as a list of prompts."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        texts_or_ids = [one for one in given if not isinstance(one, int)]
        return [*texts_or_ids] or [[one for one in given if isinstance(one, int)]]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
