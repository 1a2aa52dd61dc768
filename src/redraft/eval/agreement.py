"""Quality without a grader: how far an answer agrees with that of quality mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from redraft.eval.answer import PIECE, Model
from redraft.eval.records import RecordLog
from redraft.eval.runner import in_batches, run
from redraft.eval.settings import QUALITY, Setting
from redraft.eval.task import Item

LONGEST = 4000  # words that are compared; the time grows with their square


@dataclass(frozen=True)
class Agreement:
    """Items that were answered by the reference setting, graded by the share of its words that an answer has, in order
    (twice the matching words over the words of both, Ratcliff and Metzener 1988)."""

    suite: str
    answered: tuple[Item, ...]

    @property
    def name(self) -> str:
        return self.suite

    def items(self) -> list[Item]:
        return list(self.answered)

    def grade(self, item: Item, response: str) -> float:
        first, second = PIECE.findall(item.reference)[:LONGEST], PIECE.findall(response)[:LONGEST]
        return SequenceMatcher(None, first, second, autojunk=False).ratio()


@dataclass(frozen=True)
class _Ungraded:
    """The reference agrees with itself."""

    answered: tuple[Item, ...]
    name: str

    def items(self) -> list[Item]:
        return list(self.answered)

    def grade(self, item: Item, response: str) -> float:
        return 1.0


def agreement(
    items: Sequence[Item],
    model: Model,
    log: RecordLog,
    batch: int,
    reference: Setting = QUALITY,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Agreement:
    """Answers the items at the reference setting; what it costs is known then, and isn't asked again."""
    name = f"{items[0].suite}, agreement with {reference.label}"
    asked = [replace(item, suite=name, reference=None) for item in items]
    workers = in_batches(model, _Ungraded(tuple(asked), name), batch)
    records = run(asked, (reference,), model.identity, log, workers, report)
    answered = tuple(replace(item, reference=record.response) for item, record in zip(asked, records, strict=True))
    known = {(model.identity, item.key, reference.key) for item in answered} & log.records.keys()
    pairs = zip(answered, records, strict=True)
    log.add([replace(r, item=i.key) for i, r in pairs if (model.identity, i.key, reference.key) not in known])
    return Agreement(name, answered)
