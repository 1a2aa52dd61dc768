"""A conversation on its way to the engine, whichever route it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.server.errors import invalid
from redraft.server.protocol.base import RedraftOptions, sampling
from redraft.server.service import Service
from redraft.server.tools import Toolset
from redraft.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Chat:
    """Ready for the engine. toolset: the tools that may be called, None for none."""

    prompt: list[int]
    params: SamplingParams
    toolset: Toolset | None


async def prepare(
    service: Service,
    messages: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Any],
    options: RedraftOptions | None,
    *,
    tools: Sequence[Mapping[str, Any]],
    tool_choice: str | None,
    names: Mapping[str, str],
) -> Chat:
    """Everything that can be refused before the engine is asked.

    messages, tools: in the shape of chat completions. fields: of `SamplingParams`, None where the request is silent.
    names: what the request calls `max_tokens`, `logprobs` and its `messages`. Raises ApiError and RedraftError.
    """
    if tool_choice is not None and not tools:
        raise invalid("tool_choice needs tools", "tool_choice")
    params = sampling(service.defaults, service.modes, fields, options, names)
    toolset = Toolset.of(tools, service.prompts.tokenizer.chat_template) if tools else None
    if tool_choice == "none":
        tools, toolset = (), None
    prompt = await service.prompts.chat(messages, tools or None)
    open_end = fields["max_tokens"] is None and "max_tokens" not in service.defaults
    params = service.fit([prompt], params, open_end=open_end, param=names["messages"])
    return Chat(prompt, params, toolset)
