from __future__ import annotations

from pathlib import Path

import pytest

from redraft.errors import ConfigError
from redraft.training.recipe import ScheduleConfig, load_recipe

NANO = Path(__file__).parents[2] / "recipes" / "nano.yaml"


def test_the_recipe_of_nano_is_valid_and_takes_overrides() -> None:
    recipe = load_recipe(NANO, ["schedule.steps=7", "optimizer.rate=2e-3", "objective.noise.full=0.25"])
    assert (recipe.schedule.steps, recipe.optimizer.rate, recipe.objective.noise.full) == (7, 2e-3, 0.25)
    assert set(recipe.data.skills) == {"code", "math", "structured", "tools", "reasoning", "instructions"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.step=7", "did you mean 'steps'"),
        ("shedule.steps=7", "did you mean 'schedule'"),
        ("schedule.steps=many", "schedule.steps must be int, got 'many'"),
        ("schedule.steps=true", "schedule.steps must be int"),
        ("optimizer.kind=sgd", "optimizer.kind"),
        ("optimizer.weight_decay=-1", r"optimizer\.weight_decay must be at least 0, got -1"),
        ("optimizer.beta2=1", r"optimizer\.beta2 must be from 0 to below 1, got 1"),
        ("optimizer.balance=.nan", r"optimizer\.balance must be at least 0, got nan"),
        ("objective.mtf.share=1.5", r"objective\.mtf\.share must be from 0 to 1"),
        ("objective.mtf=0.5", "objective.mtf must be a mapping"),
        ("objective.noise.ratio_min=2", r"objective\.noise\.ratio_min"),
        ("batch.length=0", "batch.length must be at least 1"),
        ("seed=-1", "seed must be at least 0"),
        ("run.save_every=0", r"run\.save_every must be at least 1, got 0"),
        ("run.log_every=0", r"run\.log_every"),
        ("run.keep=0", r"run\.keep"),
        ("tokenizer.samples=0", r"tokenizer\.samples"),
        ("data.level_end=[0, 0, 0]", r"data\.level_end"),
        ("data.level_start=[1, -1, 0]", r"data\.level_start"),
        ("data.curriculum=-1", r"data\.curriculum"),
        ("run.precision=int4", "run.precision"),
        ("schedule", "key=value"),
        ("model.hiden_size=64", "did you mean 'hidden_size'"),
        ("model.vocab_size=64", r"unknown key 'model\.vocab_size'"),
        ("data.skills=7", "data.skills must be dict"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(NANO, [override])


@pytest.mark.parametrize("text", ["- a\n- b\n", "seed: [1", "seed: 1\nmodell: {}\n"])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_recipe(tmp_path / "recipe.yaml")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_recipe(tmp_path / "nowhere.yaml")


def test_warmup_stable_decay() -> None:
    schedule = ScheduleConfig(steps=100, warmup=10, decay=0.4)
    assert schedule.factor(0) == pytest.approx(0.1)
    assert schedule.factor(9) == schedule.factor(59) == 1.0
    assert schedule.factor(80) == pytest.approx(0.5)
    assert schedule.factor(99) == pytest.approx(1 / 40)
