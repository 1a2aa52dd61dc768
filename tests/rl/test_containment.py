"""A policy that writes harmful programs is scored 0 for each of them, and the next answer is graded as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from redraft.rl.environment import Answer
from redraft.rl.environments.skills import SkillEnvironment
from redraft.rl.rewards import RewardConfig

HARM = {
    "fork bomb": "while True:\n        os.fork()",
    "infinite loop": "while True:\n        pass",
    "memory hog": "x = [bytearray(10**7) for _ in range(10**4)]",
    "file outside": "open('/tmp/redraft-containment', 'w').write('x')",
    "socket": "__import__('socket').create_connection(('127.0.0.1', 22))",
    "signal": "os.kill(os.getppid(), 9)",
    "output": "[os.write(n, b'x' * 10**8) for n in (1, 2, 3)]",
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_harm_is_contained_and_scored_zero(harm: str) -> None:
    environment = SkillEnvironment({"code": 1.0}, RewardConfig())
    task = environment.task(4)
    name = task.reference["function"]
    right = task.answer.split(":\n", 1)[1]
    header = task.answer.split(":\n", 1)[0]
    documentation, *rest = right.split("\n")
    program = f"import os\n{header}:\n{documentation}\n    {harm}\n" + "\n".join(rest)
    assert f"def {name}" in program
    assert environment.reset(4).step(Answer(program, 50, True)).reward == 0.0
    assert environment.reset(4).step(Answer(task.answer, 50, True)).reward == 1.0
    assert not Path("/tmp/redraft-containment").exists()
