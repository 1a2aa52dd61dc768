"""Code tasks: their answers run right, their tests tell wrong functions apart."""

import random
from collections.abc import Iterator

from redraft.skills.base import Task
from redraft.skills.code import SKILL, program
from redraft.skills.code_operations import OPERATIONS


def draws(count: int, seed: int = 0) -> Iterator[Task]:
    rng = random.Random(seed)
    for level in SKILL.levels:
        for _ in range(count):
            yield SKILL.sample(rng, level)


def values(task: Task, answer: str) -> list[object]:
    """What a trusted answer returns on the task's tests, without the cost of a process."""
    namespace: dict[str, object] = {}
    exec(answer, namespace)
    function = namespace[task.reference["function"]]
    assert callable(function)
    return [function(*arguments) for arguments, _ in task.reference["cases"]]


def test_every_answer_gives_the_expected_values():
    for task in draws(400):
        expected = [value for _, value in task.reference["cases"]]
        assert values(task, task.answer) == expected, task.answer
        assert program(task.answer, task.reference["function"], task.reference["documented"]) == task.answer
        assert len(expected) >= 5


def test_every_operation_is_drawn():
    names = {part for task in draws(600) for part in task.composition.split(":")[2].replace("?", "+").split("+")}
    assert {op.name for ops in OPERATIONS.values() for op in ops} <= {name for n in names for name in n.split("&")}


def test_leaving_out_any_statement_is_wrong():
    for task in draws(150, seed=2):
        lines = task.answer.split("\n")
        expected = [value for _, value in task.reference["cases"]]
        body = range(2 if task.reference["documented"] else 1, len(lines) - 1)
        for i in body:
            if ".split()" in lines[i] or "sizes = " in lines[i]:
                continue
            assert values(task, "\n".join(lines[:i] + lines[i + 1 :])) != expected, task.answer


def test_wrong_answers_grade_wrong():
    task = next(t for t in draws(20, seed=3) if t.reference["documented"])
    name = task.reference["function"]
    bare = "\n".join(line for line in task.answer.split("\n") if '"""' not in line)
    wrong = [
        name,
        task.answer + "\n" + "#" * 4000,
        task.answer.replace(f"def {name}", "def other"),
        bare,
        f'def {name}(*a):\n    """Does nothing."""\n    return None',
        f'def {name}(*a):\n    """Runs on."""\n    while True: pass',
        f'class Same:\n    __eq__ = lambda *a: True\ndef {name}(*a):\n    """Equal."""\n    return Same()',
        task.answer + "\nraise SystemExit(0)",
    ]
    assert SKILL.grade_many([(task, response) for response in wrong]) == [0.0] * len(wrong)


def test_true_is_not_one():
    task = Task("code", 1, "", "", "", {"function": "f", "documented": False, "cases": [[[1], True]]})
    assert SKILL.grade(task, "def f(x):\n    return x") == 0.0
    assert SKILL.grade(task, "def f(x):\n    return x == 1") == 1.0


def test_a_fenced_answer_is_right():
    task = next(draws(1))
    assert SKILL.grade(task, f"Here it is:\n```python\n{task.answer}\n```\n") == 1.0


def test_other_ways_to_write_it_are_right():
    task = Task("code", 1, "", "", "", {"function": "f", "documented": False, "cases": [[[[3, 1, 2]], [1, 2, 3]]]})
    assert SKILL.grade(task, "def f(v):\n    v.sort()\n    return tuple(v)") == 1.0
