"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from redraft.server.protocol.base import Wire
from redraft.server.protocol.messages import Message

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class TokenizeRequest(Wire):
    """One of text and messages. A control string in either is text."""

    model: str | None = None
    text: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None


class Tokenized(BaseModel):
    tokens: list[int]
    count: int
    texts: list[str]


class DetokenizeRequest(Wire):
    model: str | None = None
    tokens: list[TokenId]


class Detokenized(BaseModel):
    text: str
