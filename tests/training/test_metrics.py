"""The metrics file survives a crash and a full disk; the picture draws what the file holds; trackers get every line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redraft.errors import CheckpointError, ConfigError
from redraft.training.metrics import PANELS, MetricsFile, draw_curves, read_lines, streams
from redraft.training.recipe import Recipe, RunConfig
from redraft.training.trackers import open_tracker

STEP = {"step": 3, "positions": 90, "loss": 1.5, "draft_loss": 1.0, "edit_loss": 0.5, "draft_accuracy": 0.25}
EVALUATION = {"step": 3, "positions": 90, "eval_score": 0.5, "eval_Q_accuracy": 0.6, "eval_S_accuracy": 0.4}


def test_metrics_of_steps_that_are_run_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    metrics = MetricsFile(path, step=1)
    metrics.write(step=2, again=True)
    metrics.close()
    assert read_lines(path) == [{"step": 1}, {"step": 2, "again": True}]


def test_a_run_whose_metrics_have_earlier_names_goes_on_under_todays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "tokens": 9, "tokens_per_second": 3.0, "loss": 2.0, "rate": 0.5}\n')
    metrics = MetricsFile(path, step=1)
    metrics.write(step=2, positions=18, loss=1.0)
    metrics.close()
    first = {"step": 1, "positions": 9, "positions_per_second": 3.0, "loss": 2.0, "learning_rate_factor": 0.5}
    assert read_lines(path) == [first, {"step": 2, "positions": 18, "loss": 1.0}]
    draw_curves(path, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_full_disk_is_a_checkpoint_error(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    metrics.handle.close()
    metrics.handle = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: No space left on device"):
        metrics.write(step=1)
    with pytest.raises(CheckpointError, match="No space left on device"):
        metrics.close()


def test_streams_are_whatever_the_objective_reports() -> None:
    assert streams(list(STEP)) == ["draft_loss", "edit_loss"]
    assert streams(["loss", "preference_loss", "chosen_loss", "margin"]) == ["preference_loss", "chosen_loss"]
    assert streams(["loss", "eval_loss"]) == ["loss"]
    assert streams(["step"]) == []


@pytest.mark.parametrize(
    ("lines", "panels"),
    [
        ([STEP, EVALUATION], ["loss", "accuracy"]),
        ([{"step": 1, "positions": 9, "loss": 0.7, "preference_loss": 0.7, "margin": -0.1}], ["loss", "margin"]),
        ([{"step": 1, "positions": 9, "loss": 2.0}, {"step": 1, "positions": 9, "eval_bits": 3.0}], ["loss", "bits"]),
    ],
)
def test_the_picture_shows_what_the_metrics_hold(
    tmp_path: Path, lines: list[dict[str, Any]], panels: list[str]
) -> None:
    file, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    draw_curves(file, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    names = list(dict.fromkeys(name for line in lines for name in line))
    assert [panel.ending for panel in PANELS if panel.of(names)] == panels


def recipe(track: str) -> Recipe:
    return Recipe(run=RunConfig(track=track))


def test_no_tracker_without_a_wish(tmp_path: Path) -> None:
    assert open_tracker(recipe("none"), tmp_path, 0) is None


def test_tensorboard_holds_the_scalars_and_takes_back_repeated_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start in (0, 2):  # the second run goes on after step 2
        tracker = open_tracker(recipe("tensorboard"), tmp_path, start)
        assert tracker is not None
        for step in range(start + 1, 5):
            tracker.write(**STEP | {"step": step, "draft_loss": float(start + step)})
        tracker.write(**EVALUATION)
        tracker.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/draft_loss")] == [(1, 1), (2, 2), (3, 5), (4, 6)]
    assert read.Scalars("eval/Q_accuracy")[-1].value == pytest.approx(0.6)
    assert "train/step" not in read.Tags()["scalars"]


class FakePackage:
    """What trackio and wandb have in common."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def init(self, **settings: Any) -> SimpleNamespace:
        self.started.append(settings)
        return SimpleNamespace(log=lambda values, step: self.logged.append((values, step)), finish=self._finish)

    def _finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("kind", ["trackio", "wandb"])
def test_a_hosted_tracker_gets_every_line_and_resumes_its_run(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = FakePackage()
    monkeypatch.setitem(sys.modules, kind, package)
    for start in (0, 3, 0):  # a run, the same one resumed, and another in its folder
        tracker = open_tracker(recipe(kind), tmp_path, start)
        assert tracker is not None
        tracker.write(**STEP)
        tracker.write(**EVALUATION)
        tracker.close()
    first, resumed, other = package.started
    assert first == resumed and first["name"] != other["name"]
    assert first["resume"] == "allow" and first["config"]["run"]["track"] == kind
    assert first["name"].startswith(tmp_path.name) and first.get("id") == (first["name"] if kind == "wandb" else None)
    assert package.logged[0][0]["train/draft_loss"] == 1.0 and package.logged[0][1] == 3
    assert package.logged[1][0] == {
        "train/positions": 90,
        "eval/score": 0.5,
        "eval/Q_accuracy": 0.6,
        "eval/S_accuracy": 0.4,
    }
    assert package.finished == 3


@pytest.mark.parametrize("kind", ["trackio", "wandb"])
def test_a_tracker_that_cannot_start_says_why(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise RuntimeError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setitem(sys.modules, kind, SimpleNamespace(init=init))
    with pytest.raises(ConfigError, match=f"run.track={kind} could not start: No API key configured. Use `wandb"):
        open_tracker(recipe(kind), tmp_path, 0)


@pytest.mark.parametrize("kind", ["trackio", "wandb", "tensorboard"])
def test_a_missing_package_says_what_to_install(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("torch.utils.tensorboard", "tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ConfigError, match=rf"run.track={kind} needs .* pip install 'redraft\[{kind}\]'"):
        open_tracker(recipe(kind), tmp_path, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"track": "mlflow"}, "run.track must be one of none, tensorboard, trackio, wandb, got 'mlflow'"),
        ({"evaluate": "vibes"}, "run.evaluate must be one of skills, elbo"),
        ({"average": -1}, "run.average must be at least 0, got -1"),
        ({"evaluate_every": -5}, "run.evaluate_every must be at least 0, got -5"),
        ({"evaluate_items": 0}, "run.evaluate_items must be at least 1"),
        ({"evaluate_data": "rows.jsonl"}, "run.evaluate_data is for run.evaluate=elbo"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)
