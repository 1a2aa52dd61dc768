"""Messages and tools of a chat, and what of them the chat template gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from redraft.server.errors import invalid, unsupported
from redraft.server.protocol.base import Neutral, Wire

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
NO_NAMES = "chat templates don't tell participants apart"


class TextPart(Wire):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"content of type {kind[:40]!r} is not supported; the model reads text only")
        return data


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class FunctionCall(Wire):
    name: Name
    arguments: Annotated[str, Field(description="A JSON object, as text.")]


class ToolCall(Wire):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(Wire):
    neutral: ClassVar[Neutral] = {"name": ((), NO_NAMES)}

    role: Literal["system", "developer"]
    content: Content


class UserMessage(Wire):
    neutral: ClassVar[Neutral] = {"name": ((), NO_NAMES)}

    role: Literal["user"]
    content: Content


class AssistantMessage(Wire):
    neutral: ClassVar[Neutral] = {
        "name": ((), NO_NAMES),
        "audio": ((), "the model reads text only"),
        "function_call": ((), "give tool_calls"),
        "refusal": ((), "the model never answers by a refusal"),
        "annotations": (([],), "the model reads text only"),
        "reasoning_content": (("",), "the model has no reasoning apart from its text"),
        "reasoning": (("",), "the model has no reasoning apart from its text"),
        "provider_specific_fields": (({}, {"refusal": None}), "there are none"),
    }

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None


class ToolMessage(Wire):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: Annotated[str | None, Field(description="As in the call; nothing else is taken.")] = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Wire):
    neutral: ClassVar[Neutral] = {
        "strict": ((False,), "arguments can't be forced into a schema yet; they are checked against it")
    }

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Wire):
    type: Literal["function"]
    function: Function


class NamedFunction(Wire):
    name: str


class NamedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as chat templates expect them: contents as one text, arguments as objects, developers as system."""
    calls: dict[str, str] = {}
    written = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        entry: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
        if isinstance(message, AssistantMessage):
            if message.content is None and message.tool_calls is None:
                raise invalid(f"{where} must have content or tool_calls", where)
            if message.tool_calls is not None:
                entry["tool_calls"] = [
                    _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
                ]
                calls |= {call.id: call.function.name for call in message.tool_calls}
        if isinstance(message, ToolMessage):
            _check_answer(message, calls, where)
            entry["name"], entry["tool_call_id"] = calls[message.tool_call_id], message.tool_call_id
        entry["content"] = text_of(message.content)
        written.append(entry)
    return written


def text_of(content: Content | None) -> str:
    return content or "" if isinstance(content, str) or content is None else "".join(part.text for part in content)


def require_open_choice(choice: Any, name: str = "tool_choice") -> None:
    """Forcing a call needs constrained decoding."""
    if choice not in (None, "none", "auto"):
        raise unsupported(name, 'calls can\'t be forced yet; it must be "auto" or "none"')


def _check_answer(message: ToolMessage, calls: dict[str, str], where: str) -> None:
    if message.tool_call_id not in calls:
        raise invalid(
            f"{where}.tool_call_id must be the id of a call in an earlier message, got {message.tool_call_id[:40]!r}",
            f"{where}.tool_call_id",
        )
    called = calls[message.tool_call_id]
    if message.name not in (None, called):
        raise invalid(f"{where}.name must be that of the call, {called!r}, got {message.name!r}", f"{where}.name")


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        got = call.function.arguments[:60]
        name = f"{where}.function.arguments"
        raise invalid(f"{name} must be a JSON object as text, got {got!r}", name)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
