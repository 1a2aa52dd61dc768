"""`/v1/responses`: requests, and what of them the chat template gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from redraft.server.errors import invalid
from redraft.server.protocol.base import Count, Neutral, RedraftOptions, Temperature, TopP, Wire
from redraft.server.protocol.messages import Name

LOGPROBS = "message.output_text.logprobs"
TEXTS = ("input_text", "output_text", "text")
Status = Literal["completed", "incomplete", "in_progress"]


class InputText(Wire):
    neutral: ClassVar[Neutral] = {
        "annotations": (([],), "the model reads text only"),
        "logprobs": (([],), "earlier answers are read as text"),
    }

    type: Literal["input_text", "output_text", "text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind not in TEXTS:
            raise ValueError(f"content of type {kind[:40]!r} is not supported; the model reads text only")
        return data


Texts = str | Annotated[list[InputText], Field(min_length=1)]


class Item(Wire):
    """What the items of an input have in common: an answer's items can be given back as they came."""

    id: Annotated[str | None, Field(description="Nothing is looked up by it.")] = None
    status: Status | None = None


class InputMessage(Item):
    neutral: ClassVar[Neutral] = {"phase": (("final_answer",), "the model writes answers only")}

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class InputCall(Item):
    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Name
    arguments: str


class InputResult(Item):
    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Texts


def _kind(item: Any) -> str:
    """A message may leave its type out."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return kind if isinstance(kind, str) else "message"


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")],
    Discriminator(_kind),
]


class FunctionTool(Wire):
    neutral: ClassVar[Neutral] = {
        "strict": ((False,), "arguments can't be forced into a schema yet; they are checked against it")
    }

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class TextFormat(Wire):
    neutral: ClassVar[Neutral] = dict.fromkeys(
        ("name", "schema", "strict", "description"), ((), 'output can\'t be constrained yet; the type must be "text"')
    )

    type: Literal["text"]


class TextConfig(Wire):
    neutral: ClassVar[Neutral] = {"verbosity": (("medium",), "ask for it in the input")}

    format: TextFormat | None = None


class NamedFunction(Wire):
    type: Literal["function"]
    name: str


class ResponseStreamOptions(Wire):
    neutral: ClassVar[Neutral] = {"include_obfuscation": ((False,), "chunks are never padded")}


class ResponseRequest(Wire):
    neutral: ClassVar[Neutral] = {
        "access_programs": ((), "there are none"),
        "background_options": ((), "background responses run at once"),
        "context_management": (([],), "nothing is compacted; an over-long input is refused"),
        "conversation": ((), "give previous_response_id or the whole input"),
        "image": ((), "the model reads text only"),
        "max_tool_calls": ((), "the server calls no tools itself"),
        "moderation": ((), "there is none"),
        "parallel_tool_calls": ((True,), "the number of calls can't be constrained yet"),
        "prompt": ((), "there are no stored prompts; give input"),
        "prompt_cache_key": ((), "the cache finds common beginnings by itself"),
        "prompt_cache_options": ((), "the cache finds common beginnings by itself"),
        "prompt_cache_retention": ((), "the cache finds common beginnings by itself"),
        "reasoning": (({}, {"effort": None}, {"effort": "none"}), "the model doesn't reason apart from its text"),
        "service_tier": (("auto", "default"), "there is one tier"),
        "truncation": (("disabled",), "an over-long input is refused"),
    }

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    model: str | None = Field(None, description="The served model's name; it may be left out.")
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    metadata: Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    store: Annotated[bool | None, Field(description="Kept in memory, by default.")] = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    user: Annotated[str | None, Field(max_length=512, description="Noted in the log.")] = None
    safety_identifier: Annotated[str | None, Field(max_length=512, description="Noted in the log.")] = None
    redraft: RedraftOptions | None = None


def conversation(given: str | Sequence[InputItem], earlier: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """An input, after what was said earlier, as messages for the chat template. A call belongs to the assistant's
    message before it, and a result to a call. Raises ApiError."""
    messages = [dict(message) for message in earlier]
    items = [InputMessage(role="user", content=given)] if isinstance(given, str) else given
    called = {call["id"]: call["function"]["name"] for one in messages for call in one.get("tool_calls", ())}
    for index, item in enumerate(items):
        if isinstance(item, InputMessage):
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _text(item.content)})
        elif isinstance(item, InputCall):
            called[item.call_id] = item.name
            add_call(messages, item.call_id, item.name, _arguments(item.arguments, f"input[{index}].arguments"))
        else:
            if item.call_id not in called:
                name = f"input[{index}].call_id"
                raise invalid(f"{name} must be that of a call before it, got {item.call_id[:40]!r}", name)
            entry = {"role": "tool", "tool_call_id": item.call_id, "name": called[item.call_id]}
            messages.append(entry | {"content": _text(item.output)})
    return messages


def add_call(messages: list[dict[str, Any]], call_id: str, name: str, arguments: dict[str, Any]) -> None:
    """Puts a call into the assistant's message at the end, or into a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    messages[-1] = messages[-1] | {"tool_calls": [*messages[-1].get("tool_calls", ()), call]}


def _text(content: Texts) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _arguments(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise invalid(f"{name} must be a JSON object as text, got {text[:60]!r}", name)
    return found
