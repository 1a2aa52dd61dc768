"""`/v1/chat/completions`."""

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
from redraft.server.protocol.messages import Message, Tool, ToolCall, ToolChoice

NO_CONSTRAINTS = 'output can\'t be constrained yet; the type must be "text"'


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatRequest(Wire):
    neutral: ClassVar[Neutral] = {
        "audio": ((), "the model writes text only"),
        "modalities": ((["text"],), "the model writes text only"),
        "function_call": (("none",), "give tool_choice"),
        "functions": (([],), "give tools"),
        "metadata": (({},), "nothing is stored"),
        "moderation": ((), "there is none"),
        "parallel_tool_calls": ((True,), "the number of calls can't be constrained yet"),
        "prediction": ((), "a draft is the model's own"),
        "prompt_cache_key": ((), "the cache finds common beginnings by itself"),
        "prompt_cache_options": ((), "the cache finds common beginnings by itself"),
        "prompt_cache_retention": ((), "the cache finds common beginnings by itself"),
        "reasoning_effort": (("none",), "the model doesn't reason apart from its text"),
        "service_tier": (("auto", "default"), "there is one tier"),
        "store": ((False,), "chat completions aren't stored; responses are"),
        "verbosity": (("medium",), "ask for it in the messages"),
        "web_search_options": ((), "the server fetches nothing"),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    model: str | None = Field(None, description="The served model's name; it may be left out.")
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    user: Annotated[str | None, Field(max_length=512, description="Noted in the log.")] = None
    safety_identifier: Annotated[str | None, Field(max_length=512, description="Noted in the log.")] = None
    redraft: RedraftOptions | None = None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    content: list[TokenLogprobs]
    refusal: None = None


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
