"""A model that knows the answers and drafts the faster, and the worse, the lower its threshold is."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from redraft.eval.records import Record
from redraft.eval.skills import Item
from redraft.types import OFF, Choice, Completion, SamplingParams, Stats


class FakeLLM:
    """Right with probability of about its threshold, or always when it edits; `calls` counts the answers.

    fail_after: raises KeyboardInterrupt at that answer, as when the run is stopped.
    """

    block_length = 32

    def __init__(self, items: Sequence[Item], fail_after: int | None = None) -> None:
        self.answers = [(item.task.prompt, item.task.answer) for item in items]
        self.fail_after = fail_after
        self.calls = 0

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        return [[prompt for prompt, _ in self.answers].index(messages[0]["content"])]

    def generate(self, prompts: Any, params: SamplingParams | None = None) -> list[Completion]:
        assert params is not None and params.threshold is not None
        if self.calls == self.fail_after:
            raise KeyboardInterrupt
        self.calls += 1
        prompt, answer = self.answers[prompts[0][0]]
        luck = zlib.crc32(prompt.encode()) % 100 / 100
        right = params.edit_threshold != OFF or luck < params.threshold
        stats = Stats(forwards=round(10 * params.threshold), generated_tokens=70, seconds=0.5, edits=7)
        return [Completion([1], [Choice(answer if right else "no", [2] * 70, "stop", stats)])]


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "model": "m",
        "item": "i",
        "setting": "0.5/0",
        "skill": "code",
        "level": 1,
        "split": "seen",
        "score": 1.0,
        "tokens": 50,
        "forwards": 10,
        "edits": 2,
        "blocks": 2,
        "seconds": 0.1,
        "first_block_seconds": 0.05,
        "finish_reason": "stop",
        "prompt": "p",
        "response": "r",
    }
    return Record(**fields | changes)
