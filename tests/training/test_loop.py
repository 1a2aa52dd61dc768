"""Whole runs on a tiny model: they learn, resume to the bit, stop when asked, and never lose the last checkpoint."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch

from redraft.errors import CheckpointError, ConfigError, NumericalError
from redraft.training.loop import open_run, train, train_step
from redraft.training.metrics import MetricsFile, read_lines
from redraft.training.recipe import Recipe, load_recipe
from redraft.training.state import states

NANO = Path(__file__).parents[2] / "recipes" / "nano.yaml"
TINY = [
    "model={hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, "
    "num_key_value_heads: 1, head_dim: 16, moe_intermediate_size: 16, num_experts: 4, num_experts_per_tok: 2, "
    "n_group: 1, topk_group: 1, max_position_embeddings: 512}",
    "tokenizer={vocab_size: 420, samples: 60}",
    "batch={samples: 4, micro: 2}",
    "objective.mtf_start=2",
    "data.max_length=900",
    "run.log_every=1",
    "run.processes=1",
    "run.save_every=4",
    "schedule.warmup=1",
]


def recipe(folder: Path, *overrides: str) -> Recipe:
    return load_recipe(NANO, [*TINY, f"run.output={folder}", *overrides])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(states(folder)[-1] / "model.safetensors")


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, kind: str) -> None:
    options = (f"optimizer.kind={kind}", "schedule.steps=6")
    train(recipe(tmp_path / "whole", *options))
    run = open_run(recipe(tmp_path / "broken", *options))
    for _ in range(4):
        train_step(run)
    from redraft.training.loop import _save

    _save(run)
    train_step(run)  # a step that is lost with the process
    train(recipe(tmp_path / "broken", *options))
    whole, broken = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    for name in ("whole", "broken"):
        lines = read_lines(tmp_path / name / "metrics.jsonl")
        assert [line["step"] for line in lines] == ([1, 2, 3, 4, 5, 6] if name == "whole" else [5, 6])
    assert all(math.isfinite(line["draft_loss"]) for line in lines)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "whole" / "export" / name).stat().st_size > 0
    assert (tmp_path / "whole" / "curves.png").stat().st_size > 1000


def test_the_loss_falls(tmp_path: Path) -> None:
    run = open_run(recipe(tmp_path, "schedule.steps=100", "optimizer.rate=1e-2", "batch={samples: 8, micro: 8}"))
    losses = [train_step(run)["draft_loss"] for _ in range(25)]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_gradient_accumulation_does_not_change_a_step(tmp_path: Path) -> None:
    lines = []
    for micro in (4, 2, 1):
        options = (f"batch={{samples: 4, micro: {micro}}}", "objective.mtf=0", "optimizer.kind=adamw")
        run = open_run(recipe(tmp_path / str(micro), *options))
        run.model.double()
        lines.append([train_step(run)["draft_loss"] for _ in range(3)])
    assert lines[0] == pytest.approx(lines[1], rel=1e-9) and lines[0] == pytest.approx(lines[2], rel=1e-9)


def test_a_stop_signal_writes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    def stop_at_two(line: dict[str, float]) -> None:
        if line["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt, match="resumes from"):
        train(recipe(tmp_path, "schedule.steps=50"), report=stop_at_two)
    assert json.loads((states(tmp_path)[-1] / "run.json").read_text())["step"] in (2, 3)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path: Path) -> None:
    run = open_run(recipe(tmp_path, "schedule.steps=5"))
    train_step(run)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    with torch.no_grad():
        run.model.norm.weight[0] = math.nan
    with pytest.raises(NumericalError, match="step 1"):
        train_step(run)
    after = run.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name != "norm.weight")


def test_old_checkpoints_go_and_a_half_written_one_is_never_taken(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=7", "run.save_every=2"))
    assert [path.name for path in states(tmp_path)] == ["state-00000006", "state-00000007"]
    (tmp_path / "state-00000009").mkdir()
    assert states(tmp_path)[-1].name == "state-00000007"


def test_a_used_folder_is_refused_without_resume(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    with pytest.raises(CheckpointError, match="already holds a run"):
        open_run(recipe(tmp_path, "schedule.steps=1"), resume=False)


def test_a_checkpoint_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    with pytest.raises(CheckpointError, match="cannot resume") as error:
        open_run(recipe(tmp_path, "schedule.steps=1", "model.num_hidden_layers=3"))
    assert "\n" not in str(error.value)


def test_unknown_skills_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="poetry"):
        open_run(recipe(tmp_path, "data.skills={poetry: 1.0}"))


def test_metrics_of_steps_that_are_run_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    metrics = MetricsFile(path, step=1)
    metrics.write(step=2, again=True)
    metrics.close()
    assert read_lines(path) == [{"step": 1}, {"step": 2, "again": True}]


def test_a_run_can_start_from_a_finished_model(tmp_path: Path) -> None:
    finished = train(recipe(tmp_path / "first", "schedule.steps=2"))
    run = open_run(recipe(tmp_path / "second", "schedule.steps=2", f"start={finished}", "tokenizer.vocab_size=999"))
    first = open_run(recipe(tmp_path / "first", "schedule.steps=2"))
    for (name, ours), theirs in zip(run.model.state_dict().items(), first.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3, msg=name)  # the export is bfloat16
    assert run.step == 0 and run.tokenizer.vocab_size == first.tokenizer.vocab_size
    assert math.isfinite(train_step(run)["draft_loss"])
    with pytest.raises(ConfigError, match=r"model\.num_hidden_layers is 3, but .* has 2"):
        open_run(recipe(tmp_path / "third", f"start={finished}", "model.num_hidden_layers=3"))
