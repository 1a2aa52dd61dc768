"""The suites by name. Each lives in its own file; the packages of its graders are imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redraft.errors import InvalidInput
from redraft.eval.skills import SkillSuite
from redraft.eval.suites.bfcl import Bfcl
from redraft.eval.suites.choices import Choices
from redraft.eval.suites.gsm8k import Gsm8k
from redraft.eval.suites.humaneval import HumanEval
from redraft.eval.suites.ifbench import IfBench
from redraft.eval.task import Item, Suite, check_limit, first

Builder = Callable[[int, int | None], Suite]
"""A suite of a seed, with so many items of each task at least, None for its own number, where it draws them."""


@dataclass(frozen=True)
class Several:
    """Suites in one run. Each item is graded by the suite that it comes from."""

    suites: tuple[Suite, ...]

    @property
    def name(self) -> str:
        return "+".join(suite.name for suite in self.suites)

    def items(self) -> list[Item]:
        return [item for suite in self.suites for item in suite.items()]

    def grade(self, item: Item, response: str) -> float:
        return next(suite for suite in self.suites if suite.name == item.suite).grade(item, response)


@dataclass(frozen=True)
class Limited:
    """The first `limit` items of each task of a suite; None: all of them."""

    suite: Suite
    limit: int | None

    @property
    def name(self) -> str:
        return self.suite.name

    def items(self) -> list[Item]:
        return first(self.suite.items(), self.limit, self.name)

    def grade(self, item: Item, response: str) -> float:
        return self.suite.grade(item, response)


SUITES: dict[str, Builder] = {
    "skills": lambda seed, limit: SkillSuite(seed, 200 if limit is None else limit),
    "humaneval": lambda seed, limit: HumanEval(),
    "gsm8k": lambda seed, limit: Gsm8k(),
    "hellaswag": lambda seed, limit: Choices("hellaswag"),
    "truthfulqa": lambda seed, limit: Choices("truthfulqa"),
    "ifbench": lambda seed, limit: IfBench(),
    "bfcl": lambda seed, limit: Bfcl(),
}


def suite_named(names: str | Sequence[str], seed: int = 0, limit: int | None = None) -> Suite:
    """The suite of a name, or of several with commas between them; limit: items of each task. Raises InvalidInput that
    lists the suites for an unknown name, and one that names the package for a suite whose package isn't installed."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in SUITES:
            raise InvalidInput(f"suite must be one of {', '.join(SUITES)}, got {name!r}")
    check_limit(limit)
    suites = tuple(SUITES[name](seed, limit) for name in dict.fromkeys(wanted))
    return Limited(suites[0] if len(suites) == 1 else Several(suites), limit)
