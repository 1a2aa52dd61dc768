"""A scripted model: the command can be tested without weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from redraft.cli.frames import Frame
from redraft.cli.session import Session
from redraft.types import CanvasEvent, Choice, Completion, SamplingParams, Stats, TokenLogprob

MASK, EOS = 0, 1
WORDS = ["<mask>", "<eos>", "Max", " ", "has", "had", "5", "\n", "界", "\x1b[2J", "6"]
SCRIPT = [
    # tokens, masked, drafted, edited, frozen, text
    ((2, 3, 0, 0), (2, 3), (0, 1), {}, False, ""),
    ((2, 3, 5, 3), (), (2, 3), {}, False, ""),
    ((2, 3, 4, 3), (), (), {2: 5}, False, ""),
    ((2, 3, 4, 3), (), (), {}, True, "Max has "),
    ((6, 8, 1, 1), (), (0, 1, 2, 3), {}, True, "5界"),
]


class FakeTokenizer:
    special_ids = frozenset({MASK, EOS})

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(WORDS[token] for token in ids if not (skip_special and token in self.special_ids))


class FakeLLM:
    """Answers every prompt with SCRIPT. interrupt_at: the step at which Ctrl-C is pressed."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.tokenizer = FakeTokenizer()
        self.interrupt_at = interrupt_at
        self.asked: list[tuple[Any, SamplingParams]] = []

    def render(self, messages: Any, tools: Any = None) -> list[int]:
        return [len(message["content"]) for message in messages]

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[CanvasEvent]:
        self.asked.append((prompt, params))
        for number, (tokens, masked, drafted, edited, frozen, text) in enumerate(SCRIPT):
            if number == self.interrupt_at:
                raise KeyboardInterrupt
            yield CanvasEvent(
                request=0,
                choice=0,
                step=number,
                block=0 if number < 4 else 1,
                tokens=tokens,
                confidence=(0.99, 0.6, 0.3, 0.95),
                masked=masked,
                drafted=drafted,
                edited=edited,
                frozen=frozen,
                text_delta=text,
                completion=self.answer(params) if number == len(SCRIPT) - 1 else None,
            )

    def generate(self, prompts: Sequence[Any], params: SamplingParams) -> list[Completion]:
        self.asked += [(prompt, params) for prompt in prompts]
        return [self.answer(params) for _ in prompts]

    def answer(self, params: SamplingParams) -> Completion:
        choice = self.completion.choices[0]
        if params.logprobs is not None:
            choice = replace(choice, logprobs=[TokenLogprob(token, -0.5, ((2, -0.5),)) for token in choice.token_ids])
        return replace(self.completion, choices=[choice] * params.n)

    @property
    def completion(self) -> Completion:
        stats = Stats(forwards=5, drafted=8, edits=1, generated_tokens=7, prompt_tokens=3, seconds=0.5)
        return Completion([2, 3, 4], [Choice("Max has 5界", [2, 3, 4, 3, 6, 8, 1], "stop", stats)])


def session(llm: FakeLLM) -> Session:
    return Session(llm, llm.tokenizer)  # type: ignore[arg-type]


def frames() -> list[Frame]:
    return list(session(FakeLLM()).frames("Max", SamplingParams()))
