"""A model that knows the answers and drafts the faster, and the worse, the lower its threshold is."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.eval.records import Record
from redraft.eval.task import Item
from redraft.types import OFF, CanvasEvent, Choice, Completion, SamplingParams, Stats


class FakeTokenizer:
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return f"<{ids[0]}>"


class FakeLLM:
    """Right with probability of about its threshold, or always when it edits; `calls` counts the answers.

    answers: by prompt. fail_after: raises KeyboardInterrupt at that answer, as when the run is stopped.
    """

    block_length = 32
    context_length = 1000
    tokenizer = FakeTokenizer()

    def __init__(self, items: Sequence[Item], fail_after: int | None = None) -> None:
        self.answers = [(item.prompt, item.reference["answer"]) for item in items]
        self.fail_after = fail_after
        self.calls = 0
        self.asked: list[SamplingParams] = []

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        return [[prompt for prompt, _ in self.answers].index(messages[-1]["content"])]

    def generate(self, prompts: Any, params: Any = None) -> list[Completion]:
        each = params if isinstance(params, list) else [params] * len(prompts)
        return [self._answer(prompt, own) for prompt, own in zip(prompts, each, strict=True)]

    def stream(self, prompt: Any, params: Any = None) -> Iterator[CanvasEvent]:
        for number, completion in enumerate(self.generate(prompt, params)):
            common: dict[str, Any] = {"request": number, "choice": 0, "block": 0, "confidence": (1.0,)}
            yield CanvasEvent(step=0, tokens=(5,), drafted=(0,), **common)
            yield CanvasEvent(step=1, tokens=(6,), edited={0: 5}, **common)
            yield CanvasEvent(step=1, tokens=(6,), frozen=True, completion=completion, **common)

    def _answer(self, ids: list[int], params: SamplingParams) -> Completion:
        assert params.threshold is not None
        if self.calls == self.fail_after:
            raise KeyboardInterrupt
        self.calls += 1
        self.asked.append(params)
        prompt, answer = self.answers[ids[0]]
        luck = zlib.crc32(prompt.encode()) % 100 / 100
        right = params.edit_threshold != OFF or luck < params.threshold
        stats = Stats(forwards=round(10 * params.threshold), generated_tokens=70, seconds=0.5, edits=7)
        return Completion([1], [Choice(answer if right else "no", [2] * 70, "stop", stats)])


@dataclass(frozen=True)
class Capitals:
    """Three questions. broken: the grader fails on this answer."""

    broken: str | None = None

    @property
    def name(self) -> str:
        return "capitals"

    def items(self) -> list[Item]:
        pairs = {"France?": "Paris", "Spain?": "Madrid", "Peru?": "Lima"}
        return [
            Item(
                suite=self.name,
                task="europe" if answer != "Lima" else "america",
                messages=[{"role": "user", "content": question}],
                max_tokens=40,
                reference={"answer": answer},
            )
            for question, answer in pairs.items()
        ]

    def grade(self, item: Item, response: str) -> float:
        if response == self.broken:
            raise KeyError("no such thing")
        return float(response == item.reference["answer"])


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "model": "m",
        "item": "i",
        "setting": "0.5/0",
        "suite": "skills",
        "task": "code",
        "level": 1,
        "split": "seen",
        "score": 1.0,
        "error": "",
        "tokens": 50,
        "forwards": 10,
        "edits": 2,
        "blocks": 2,
        "stutter": 0.0,
        "seconds": 0.1,
        "first_block_seconds": 0.05,
        "finish_reason": "stop",
        "prompt": "p",
        "response": "r",
        "trace": (),
    }
    return Record(**fields | changes)
