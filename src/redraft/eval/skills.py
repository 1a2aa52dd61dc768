"""Held-out items of the skills: drawn once for a seed, answered by a model at each setting, and graded."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from redraft.errors import InvalidInput
from redraft.eval.records import Record
from redraft.eval.settings import Setting
from redraft.skills import SKILLS, Skill, Split, Task, grade
from redraft.types import Completion, SamplingParams

HeldOut = Literal["seen", "test", "both"]
SPLITS: dict[str, tuple[Split, ...]] = {"seen": ("seen",), "test": ("test",), "both": ("seen", "test")}
TRIES = 1000


@dataclass(frozen=True, slots=True)
class Item:
    """A task and the split that it was drawn from. key: a hash of the whole task, tests included."""

    key: str
    split: Split
    task: Task

    @classmethod
    def of(cls, task: Task, split: Split) -> Item:
        content = json.dumps(task.to_dict(), sort_keys=True, ensure_ascii=True)
        return cls(hashlib.sha256(content.encode()).hexdigest()[:16], split, task)


class Answerer(Protocol):
    """What an evaluation needs of an LLM."""

    block_length: int

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]: ...

    def generate(self, prompts: Any, params: SamplingParams | None = None) -> list[Completion]: ...


def draw_items(
    seed: int, per_skill: int, split: HeldOut = "both", skills: Mapping[str, Skill] | None = None
) -> list[Item]:
    """`per_skill` different prompts of each skill; "both" takes half of them from each held-out split.

    Levels take turns, and skills do, so that any beginning of the list is balanced. A longer list of the same seed
    begins, in each skill and split, with the same items. Raises InvalidInput when a level has too few prompts.
    """
    if split not in SPLITS:
        raise InvalidInput(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if isinstance(per_skill, bool) or not isinstance(per_skill, int) or per_skill < 1:
        raise InvalidInput(f"per_skill must be an integer of at least 1, got {per_skill!r}")
    parts = SPLITS[split]
    placed = []
    for place, skill in enumerate((SKILLS if skills is None else skills).values()):
        for part, name in enumerate(parts):
            count = (per_skill + len(parts) - 1 - part) // len(parts)
            items = _distinct(skill, random.Random(f"{seed}:{skill.name}:{name}"), name, count)
            placed += [((number, part, place), item) for number, item in enumerate(items)]
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def _distinct(skill: Skill, rng: random.Random, split: Split, count: int) -> list[Item]:
    tasks: dict[str, Task] = {}
    for number in range(count):
        level = skill.levels[number % len(skill.levels)]
        for _ in range(TRIES):
            task = skill.generate(rng, split, level)
            if task.prompt not in tasks:
                tasks[task.prompt] = task
                break
        else:
            raise InvalidInput(
                f"per_skill is too large: {skill.name} has too few different prompts of split {split!r} at "
                f"level {level}; {len(tasks)} of {count} were drawn"
            )
    return [Item.of(task, split) for task in tasks.values()]


def answer(llm: Answerer, model: str, item: Item, settings: Sequence[Setting]) -> list[Record]:
    """Answers one item at each setting, one request at a time, and grades the answers. model: its fingerprint."""
    task = item.task
    prompt = llm.render(task.messages, list(task.tools) or None)

    @cache  # settings often agree on the answer, and a program is graded in a process of its own
    def score(response: str) -> float:
        return grade(task, response)

    records = []
    for setting in settings:
        completion = llm.generate([prompt], setting.params)[0]
        stats = completion.stats
        records.append(
            Record(
                model=model,
                item=item.key,
                setting=setting.key,
                skill=task.skill,
                level=task.level,
                split=item.split,
                score=score(completion.text),
                tokens=stats.generated_tokens,
                forwards=stats.forwards,
                edits=stats.edits,
                blocks=-(-stats.generated_tokens // llm.block_length),
                seconds=stats.seconds,
                first_block_seconds=stats.seconds_to_first_block,
                finish_reason=completion.finish_reason,
                prompt=task.prompt,
                response=completion.text,
            )
        )
    return records
