"""The registry: six skills behind one `generate` and one `grade`, without heavy imports."""

import random
import subprocess
import sys

import pytest

from redraft.errors import InvalidInput
from redraft.skills import SKILLS, SPLITS, Task, generate, grade, split_of


def test_six_skills_under_their_own_names():
    assert list(SKILLS) == ["code", "math", "structured", "tools", "reasoning", "instructions"]
    for name, skill in SKILLS.items():
        assert skill.name == name
        assert skill.levels == tuple(skill.level_descriptions) and len(skill.levels) >= 3


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("skill", SKILLS)
def test_generate_honours_skill_level_and_split(skill, split):
    rng = random.Random(1)
    for level in SKILLS[skill].levels:
        task = generate(rng, split, skill, level)
        assert (task.skill, task.level) == (skill, level)
        assert split_of(task.composition, task.prompt) == split
        assert grade(task, task.answer) == 1.0
        assert grade(task, "") == 0.0


def test_generate_draws_every_skill_and_level():
    rng = random.Random(2)
    drawn = {(task.skill, task.level) for task in (generate(rng, "train") for _ in range(600))}
    assert drawn == {(name, level) for name, skill in SKILLS.items() for level in skill.levels}


def test_generate_depends_on_the_seed_alone():
    first, second = ([generate(random.Random(seed), "test") for seed in range(30)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("train", "poetry"), ("skill", "poetry", "reasoning")),
        (("train", "math", 99), ("level", "99")),
        (("dev", "math"), ("split", "dev", "train")),
    ],
)
def test_bad_arguments_are_named(arguments, names):
    with pytest.raises(InvalidInput) as caught:
        generate(random.Random(0), *arguments)
    assert all(name in str(caught.value) for name in names) and "\n" not in str(caught.value)


def test_grade_refuses_an_unknown_skill():
    with pytest.raises(InvalidInput, match="skill must be one of"):
        grade(Task("poetry", 1, "", "", ""), "a rose")


def test_import_is_light():
    code = "import sys, redraft.skills; print(*({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
