"""A model whose frontier is known: an item is right when its luck, which all settings share, is below the quality of
the setting; a few items, others for each setting, turn out the other way."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from eval_fakes import record

from redraft.eval.records import Record
from redraft.eval.settings import Setting
from redraft.eval.task import Item


def items_of(count: int, domain: str = "all", seed: int = 0) -> list[Item]:
    return [
        Item(suite="synthetic", task=domain, messages=[{"role": "user", "content": f"{seed}:{domain}:{number}"}])
        for number in range(count)
    ]


def luck(*parts: object) -> float:
    return zlib.crc32(":".join(map(str, parts)).encode()) / 2**32


class Synthetic:
    """Below its knee a setting loses 3 points of quality for each 0.1 of its threshold: 0.4 with free edits, 0.6 with
    careful ones, 0.8 without. Few post steps cost 6 points, open blocks some speed. answers: how many were made."""

    def __init__(self, flips: float = 0.005) -> None:
        self.flips = flips
        self.known: set[tuple[str, str]] = set()

    def quality(self, setting: Setting) -> float:
        knee = 0.8 if not setting.edits else 0.4 if setting.edit_threshold == 0 else 0.6
        short = max(0.0, knee - (setting.threshold or 0.0))
        return 0.9 - 0.3 * short - (0.06 if setting.max_post_steps < 16 else 0.0)

    def forwards(self, setting: Setting) -> int:
        cost = 100 * (0.2 + (setting.threshold or 0.0)) + (10 if setting.edits else 0) + 30 * setting.mbe_blocks
        return round(cost * (0.9 if setting.max_post_steps < 16 else 1.0))

    def evaluate(self, settings: Sequence[Setting], items: Sequence[Item]) -> list[Record]:
        self.known |= {(item.key, setting.key) for item in items for setting in settings}
        return [self._record(item, setting) for item in items for setting in settings]

    @property
    def answers(self) -> int:
        return len(self.known)

    def _record(self, item: Item, setting: Setting) -> Record:
        right = luck(item.prompt) < self.quality(setting)
        flipped = luck(item.prompt, setting.key) < self.flips
        common = {"item": item.key, "setting": setting.key, "task": item.task, "tokens": 200}
        return record(score=float(right != flipped), forwards=self.forwards(setting), **common)
