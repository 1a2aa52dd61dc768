"""What reinforcement learning asks of an environment: a conversation to answer, and what becomes of the answer.

    episode = environment.reset(index)       # the same index, the same episode: a resumed run goes on where it was
    turn = episode.step(answer)              # a reward; and unless it is done, messages that come next

`episode.messages` are what the model answers next. An environment with tools appends what they gave as messages of the
role "tool" and isn't done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote in one turn. tokens: how many, the EOS included. complete: it ended by itself and wasn't cut
    at the limit."""

    text: str
    tokens: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """What an environment makes of an answer. reward: of this turn; an episode's are added up. parts: what it is made
    of, for the metrics; "correct" is the share that was right."""

    reward: float
    done: bool = True
    parts: Mapping[str, float] = field(default_factory=dict)


class Episode(Protocol):
    """One conversation. messages: all of it so far, ready to be answered. tools: OpenAI function schemas."""

    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def tools(self) -> Sequence[Mapping[str, Any]]: ...
    def step(self, answer: Answer) -> Turn:
        """Takes the answer into `messages` with what follows it. Never raises on what a model may write. Different
        episodes may take their steps in several threads at once."""
        ...


class Environment(Protocol):
    """Episodes by index. turns: answers of one episode, at most. fingerprint: text that changes with the episodes; a
    run that is resumed with another one doesn't go on where it stopped."""

    @property
    def turns(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def reset(self, index: int) -> Episode: ...


@dataclass
class SingleTurn:
    """An episode of one question. score: the turn that an answer gives."""

    messages: Sequence[Message]
    score: Callable[[Answer], Turn]
    tools: Sequence[Mapping[str, Any]] = ()

    def step(self, answer: Answer) -> Turn:
        self.messages = [*self.messages, {"role": "assistant", "content": answer.text}]
        return self.score(answer)
