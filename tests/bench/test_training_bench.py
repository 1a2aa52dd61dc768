"""The training benchmark on tiny sizes: same noise, same loss; a table; refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import floors, machine, memory, training
from bench.public_trainer import dense_mask
from bench.trainers import DRAFTS_ONLY, Outcome, Task, build
from bench.training_report import summary, table
from bench.training_sizes import Size, sizes
from redraft.training.draft import DraftConfig
from redraft.training.objective import ObjectiveConfig

MODEL: dict[str, Any] = {
    "vocab_size": sizes()["nano"].tokenizer.vocab_size,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_intermediate_size": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "initializer_range": 0.2,
}
SMALL = ["--threads", "1", "--dtype", "float32", "--repeats", "2", "--no-memory"]


def small(text: int, copies: int) -> Size:
    objective = ObjectiveConfig(copies=copies, mtf=DraftConfig(share=0.5))
    data = sizes()["nano"].data
    return Size(name="tiny", model=MODEL, objective=objective, data=data, documents=3, text=text, forward=1024, rows=2)


@pytest.fixture
def known() -> dict[str, Size]:
    return {"talk": small(0, 2), "text": small(100, 1)}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody else uses, with rates that take no time to find."""
    monkeypatch.setattr(floors, "product_rate", lambda dtype, *shape: 1e9)
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)


def run(known: dict[str, Size], out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = training.main([*SMALL, *arguments, "--out", str(out)], known)
    return code, json.loads(out.read_text())


@pytest.mark.parametrize(("text", "copies"), [(0, 1), (0, 2), (100, 1)])
def test_both_trainers_take_the_same_step(text: int, copies: int) -> None:
    size = small(text, copies)
    task = Task(size, "float32", 3, size.network(3))
    ours = build("redraft", task)
    ours.step(1)  # which moves nothing
    public = build("public", task)
    for documents in (3, 1, 3):
        one, other = ours.step(documents), public.step(documents)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.norm == pytest.approx(other.norm, rel=1e-4)
        assert one.scored == other.scored
        assert one.positions < other.positions  # nothing is padded, and copies share one clean part


def test_steps_move_no_weight() -> None:
    size = small(0, 1)
    task = Task(size, "float32", 0, size.network(0))
    before = {name: tensor.clone() for name, tensor in task.network.state_dict().items()}
    losses = {}
    for name in ("diffusers", "redraft-m2t", "mtf-all", "mtf-recipe"):
        trainer = build(name, task)
        losses[name] = [trainer.step(3).loss, trainer.step(3).loss]
    assert all(first == second > 0 for first, second in losses.values())
    assert all(torch.equal(before[name], tensor) for name, tensor in task.network.state_dict().items())


def test_drafts_of_the_model_change_the_loss() -> None:
    size = small(100, 1)
    task = Task(size, "float32", 0, size.network(0))
    plain, drafted = build("redraft", task).step(3), build("mtf-all", task).step(3)
    assert plain.positions == drafted.positions and plain.loss != drafted.loss


def test_diffusers_scores_every_learnt_token_once() -> None:
    size = small(100, 1)
    task = Task(size, "float32", 0, size.network(0))
    outcome = build("diffusers", task).step(3)
    assert outcome.scored == sum(len(sample) for sample in task.samples)
    assert DRAFTS_ONLY.copies == 2 and build("redraft-m2t", task).step(3).scored >= 2 * outcome.scored


def test_dense_mask_is_block_diffusion() -> None:
    mask = dense_mask(torch.tensor([4, 2]), length=4, block_length=2)
    noisy, clean = [[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0]], [[0, 0, 0, 0, 1, 1, 0, 0], [0] * 4 + [1] * 4]
    whole = torch.tensor([noisy[0]] * 2 + [noisy[1]] * 2 + [clean[0]] * 2 + [clean[1]] * 2).bool()
    assert torch.equal(mask[0, 0], whole)
    assert torch.equal(mask[1, 0], whole & torch.tensor([1, 1, 0, 0, 1, 1, 0, 0]).bool())


@pytest.mark.usefixtures("quick")
def test_the_table_is_written(known: dict[str, Size], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results = run(known, tmp_path / "new" / "out.json")
    assert code == 0 and results["sound"] is True and results["skipped"] == []
    assert len(results["runs"]) == 2 * 2 * 6 and len(results["summary"]) == 2 * 6
    assert {check["size"] for check in results["checks"]} == {"talk", "text"}
    assert all(check["loss_difference"] <= 1e-4 for check in results["checks"])
    rows = {(row["size"], row["arm"]): row for row in results["summary"]}
    assert rows["text", "diffusers"]["ratios"].keys() == {"redraft", "redraft-m2t"}
    assert rows["text", "public"]["ratios"]["redraft"]["repeats"] == 2
    redraft, size = rows["text", "redraft"], results["sizes"]["text"]
    assert redraft["document_tokens_per_second"] == pytest.approx(
        size["document_tokens"] / redraft["seconds"]["median"]
    )
    work = 6 * redraft["positions"] * (size["active_layer_parameters"] + size["head_parameters"])
    assert redraft["utilisation"]["all"]["float32"] == pytest.approx(work / redraft["seconds"]["median"] / 1e9)
    assert redraft["utilisation"]["needed"]["float32"] < redraft["utilisation"]["all"]["float32"]
    shown = capsys.readouterr().out
    assert "utilisation of redraft" in shown and "mtf-recipe" in shown and "(target 1.4)" in shown
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.usefixtures("quick")
def test_void_runs_and_other_losses_spoil_the_result(known: dict[str, Size], tmp_path: Path) -> None:
    _, results = run(known, tmp_path / "out.json", "--size", "talk", "--arms", "public")
    for one in results["runs"]:
        one["void"] = one["repeat"] == 0 and one["arm"] == "redraft"
    again = results | summary(results)
    row = next(row for row in again["summary"] if row["arm"] == "public")
    assert row["ratios"]["redraft"]["repeats"] == 1 and again["sound"]
    for one in results["runs"]:
        one["void"] = one["arm"] == "public"
    again = results | summary(results)
    assert not again["sound"] and "void" in table(again)
    for one in results["runs"]:
        one["void"], one["loss"] = False, one["loss"] * (1.001 if one["arm"] == "public" else 1)
    again = results | summary(results)
    assert not again["sound"] and "TOO MUCH" in table(again)


@pytest.mark.usefixtures("quick")
def test_what_does_not_fit_is_left_out_and_listed(known: dict[str, Size], tmp_path: Path) -> None:
    code, results = run(known, tmp_path / "out.json", "--budget-seconds", "0.001")
    assert code == 1 and not results["runs"] and len(results["skipped"]) == 2


@pytest.mark.usefixtures("quick")
def test_an_interruption_keeps_what_was_measured(
    known: dict[str, Size], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Outcome] = training.Experiment._time  # type: ignore[assignment]

    def interrupted(self: training.Experiment, cell: training.Cell, *arguments: Any) -> Any:
        if cell.size == "text":
            raise KeyboardInterrupt
        return original(self, cell, *arguments)

    monkeypatch.setattr(training.Experiment, "_time", interrupted)
    _, results = run(known, tmp_path / "out.json", "--arms", "public")
    assert {one["size"] for one in results["runs"]} == {"talk"} and len(results["summary"]) == 2


def test_memory_of_two_steps() -> None:
    measured = memory._measure("public", small(0, 1), "float32", torch.get_num_threads(), 0)
    assert measured is None or measured["peak"] >= measured["before"] > 50e6


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own() -> None:
    measured = memory.peak_bytes("redraft", small(0, 1), "float32", 1, 0)
    assert measured is None or measured["peak"] >= measured["before"] > 50e6


def test_the_sizes_are_as_said() -> None:
    known = sizes()
    assert 100e6 < training._parameters(known["100m"]) < 120e6
    assert known["nano"].documents == 32 and known["nano"].config.hidden_size == 192
    lengths = [len(sample) for sample in known["100m"].samples(0)]
    assert all(384 <= length <= 640 for length in lengths)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "1b"], "1b"),
        (["--dtype", "int8"], "int8"),
        (["--threads", "0"], "must be a positive integer, got 0"),
        (["--arms", "nobody"], "nobody"),
        (["--budget-seconds", "-1"], "above 0, got -1"),
        (["--seed", "-1"], "at least 0, got -1"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        training.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
