"""Items answered by a model in this process, many at once on the engine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from redraft.eval.records import Edit
from redraft.eval.settings import Setting
from redraft.eval.task import Item
from redraft.types import CanvasEvent, Completion, SamplingParams

LONGEST_REPEAT = 4
# A word, a character of a script that doesn't part words by spaces, or a mark.
PIECE = re.compile(r"[぀-ヿ㐀-鿿豈-﫿]|[^\W぀-ヿ㐀-鿿豈-﫿]+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """See `Record`, which takes these over. error: why there is none."""

    text: str = ""
    tokens: int = 0
    forwards: int = 0
    edits: int = 0
    seconds: float = 0.0
    first_block_seconds: float = 0.0
    finish_reason: str = ""
    trace: tuple[Edit, ...] = ()
    error: str = ""


class Model(Protocol):
    """Who answers. identity: equal for two models only if they answer alike; part of the key of a record.
    block_length: None when unknown."""

    @property
    def identity(self) -> str: ...
    @property
    def block_length(self) -> int | None: ...

    def answer(self, items: Sequence[Item], setting: Setting) -> list[Answer]:
        """Answers all of these together; the answers are in their order, each with its own seconds (see `shared`)."""
        ...


class Answerer(Protocol):
    """What an evaluation needs of an LLM."""

    block_length: int

    @property
    def context_length(self) -> int: ...

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]: ...

    def generate(self, prompts: Any, params: Any = None) -> list[Completion]: ...


class Streamer(Answerer, Protocol):
    """What it needs to write down the edits."""

    @property
    def tokenizer(self) -> Any: ...

    def stream(self, prompt: Any, params: Any = None) -> Iterator[CanvasEvent]: ...


@dataclass(frozen=True)
class LocalModel:
    """A loaded model. traced: the answers come with their edits, which costs a little time."""

    llm: Any
    identity: str
    traced: bool = False

    @property
    def block_length(self) -> int | None:
        return self.llm.block_length

    def answer(self, items: Sequence[Item], setting: Setting) -> list[Answer]:
        prompts = [self.llm.render(item.messages, list(item.tools) or None) for item in items]
        room = [self.llm.context_length - len(prompt) for prompt in prompts]
        fit = [index for index, left in enumerate(room) if left > 0]
        answers = [
            Answer(error=f"the prompt of {len(prompt)} tokens fills the context of {self.llm.context_length}")
            for prompt in prompts
        ]
        params = [setting.params.with_(max_tokens=min(items[index].max_tokens, room[index])) for index in fit]
        if fit:
            for index, answer in zip(fit, self._answers([prompts[index] for index in fit], params), strict=True):
                answers[index] = answer
        return answers

    def _answers(self, prompts: list[list[int]], params: list[SamplingParams]) -> list[Answer]:
        began = time.perf_counter()
        traces: list[list[Edit]] = [[] for _ in prompts]
        if self.traced:
            found: dict[int, Completion] = {}
            for event in self.llm.stream(prompts, params):
                traces[event.request] += edits_of(event, self._text)
                if event.completion is not None:
                    found[event.request] = event.completion
            completions = [found[index] for index in range(len(prompts))]
        else:
            completions = self.llm.generate(prompts, params)
        wall = time.perf_counter() - began
        answers = [_answer(*pair) for pair in zip(completions, traces, strict=True)]
        return answers if len(answers) == 1 else shared(answers, wall)

    def _text(self, token: int) -> str:
        return self.llm.tokenizer.decode([token], skip_special=False)


def edits_of(event: CanvasEvent, text: Any) -> list[Edit]:
    """The edits of one step; text: the text of a token id."""
    return [
        (event.step, event.block, place, text(old), text(event.tokens[place]))
        for place, old in sorted(event.edited.items())
    ]


def shared(answers: Sequence[Answer], wall: float) -> list[Answer]:
    """Answers that were written together in `wall` seconds: each has the share of its tokens, so that tokens over
    seconds is the throughput of them all."""
    tokens = sum(answer.tokens for answer in answers)
    shares = [answer.tokens / tokens if tokens else 1 / len(answers) for answer in answers]
    return [replace(answer, seconds=wall * share) for answer, share in zip(answers, shares, strict=True)]


def stutter(text: str) -> float:
    """Share of the words of a text that end a run of up to 4 words which repeats the run immediately before it.

    Words, not tokens, so that it is the same for every tokenizer and every server. A character of Chinese or Japanese
    is a word; runs of marks alone, such as closing brackets, don't count.
    """
    pieces = PIECE.findall(text)
    repeated = sum(
        any(_repeats(pieces, end, n) for n in range(1, LONGEST_REPEAT + 1)) for end in range(1, len(pieces) + 1)
    )
    return repeated / len(pieces) if pieces else 0.0


def _repeats(pieces: Sequence[str], end: int, n: int) -> bool:
    run = pieces[end - n : end]
    return end >= 2 * n and run == pieces[end - 2 * n : end - n] and any(piece[0].isalnum() for piece in run)


def _answer(completion: Completion, trace: Sequence[Edit]) -> Answer:
    stats = completion.stats
    return Answer(
        text=completion.text,
        tokens=stats.generated_tokens,
        forwards=stats.forwards,
        edits=stats.edits,
        seconds=stats.seconds,
        first_block_seconds=stats.seconds_to_first_block,
        finish_reason=completion.finish_reason,
        trace=tuple(trace),
    )
