"""Compiled layers train as plain ones do: alone, recomputed, with adapters, over processes and after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import tiny_model
from tests.training.cluster import Case, in_processes, open_case
from tests.training.test_loop import assert_equal_weights, recipe

from redraft.errors import ConfigError
from redraft.training import compile as compiling
from redraft.training.build import open_run
from redraft.training.compile import compile_layers
from redraft.training.loop import save, train
from redraft.training.parallel import ParallelConfig, Ranks
from redraft.training.step import train_step

KEYS = ("loss", "draft_loss", "edit_loss", "gradient_norm")
OPTIONS = ("schedule.steps=4", "batch.samples=3", "run.precision=float32", "objective.mtf.share=0")
SETTINGS = {
    "plain": (),
    "recompute": ("parallel.recompute=true",),
    "lora": ("lora={rank: 2}", "optimizer.kind=adamw"),
    "bfloat16": ("run.precision=bfloat16",),
}
needs_a_compiler = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")


def losses(lines: list[dict[str, float]]) -> list[float]:
    return [line[key] for line in lines for key in KEYS]


def steps(folder: Path, count: int, *overrides: str) -> list[dict[str, float]]:
    run = open_run(recipe(folder, *OPTIONS, *overrides))
    return [train_step(run) for _ in range(count)]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.compile that traces and makes no kernels; the names of what it was given."""
    given: list[str] = []
    compile_ = torch.compile

    def trace(part: Any, **options: Any) -> Any:
        given.append(part.__qualname__)
        return compile_(part, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", trace)
    return given


def test_every_layer_is_compiled_on_both_sides_of_attention(traced: list[str], tmp_path: Path) -> None:
    expected = steps(tmp_path / "plain", 2)
    run = open_run(recipe(tmp_path / "compiled", *OPTIONS, "run.compile=true"))
    assert traced == ["Layer.before", "Layer.after"]
    assert all({"before", "after"} <= vars(layer).keys() for layer in run.model.layers)
    assert losses([train_step(run) for _ in range(2)]) == pytest.approx(losses(expected), rel=1e-6)


def test_a_missing_compiler_is_named_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"run\.compile needs a C\+\+ compiler: install g\+\+.*run\.compile=false"):
        open_run(recipe(tmp_path, *OPTIONS, "run.compile=true"))
    model = tiny_model()
    with pytest.raises(ConfigError):
        compile_layers(model)
    assert not any("before" in vars(layer) for layer in model.layers)  # it is left as it was


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.parametrize("name", SETTINGS)
def test_compiled_steps_have_the_losses_of_plain_ones(tmp_path: Path, name: str) -> None:
    start = str(train(recipe(tmp_path / "start", "schedule.steps=1"))) if name == "lora" else ""
    settings = (*SETTINGS[name], f"start={start or json.dumps('')}")
    plain = steps(tmp_path / "plain", 4, *settings)
    compiled = steps(tmp_path / "compiled", 4, *settings, "run.compile=true")
    tolerance = 0.02 if name == "bfloat16" else 1e-4
    assert losses(compiled) == pytest.approx(losses(plain), rel=tolerance)


@pytest.mark.slow
@needs_a_compiler
def test_a_compiled_run_resumes_to_the_bit(tmp_path: Path) -> None:
    options = (*OPTIONS, "run.compile=true")
    train(recipe(tmp_path / "whole", *options))
    run = open_run(recipe(tmp_path / "broken", *options))
    for _ in range(2):
        train_step(run)
    save(run)
    train(recipe(tmp_path / "broken", *options))
    assert_equal_weights(tmp_path / "whole", tmp_path / "broken")


def write_losses(folder: str, parallel: ParallelConfig, compiled: bool) -> None:
    run = open_case(Case(parallel=parallel, length=60))
    if compiled:
        compile_layers(run.model)
    lines = losses([train_step(run) for _ in range(3)])
    if Ranks().first:
        (Path(folder) / f"{compiled}.json").write_text(json.dumps(lines))


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.parametrize("parallel", [ParallelConfig(), ParallelConfig(data="shard", experts=2, recompute=True)])
def test_two_processes_compile_too(tmp_path: Path, parallel: ParallelConfig) -> None:
    for compiled in (False, True):
        in_processes(2, write_losses, str(tmp_path), parallel, compiled)
    plain, fused = (json.loads((tmp_path / f"{compiled}.json").read_text()) for compiled in (False, True))
    assert fused == pytest.approx(plain, rel=1e-6)
