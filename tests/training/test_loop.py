"""Whole runs on a tiny model: they learn, resume to the bit, stop when asked, and never lose the last checkpoint."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.cluster import Case, in_processes, open_case
from tests.training.test_layout import MASK

from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.errors import CheckpointError, ConfigError, NumericalError
from redraft.model import storage
from redraft.model.network import LLaDA2
from redraft.model.router import Router
from redraft.text.tokenizer import Tokenizer
from redraft.training import loop
from redraft.training.average import score_of
from redraft.training.build import open_run
from redraft.training.loop import Log, evaluate_run, save, train
from redraft.training.metrics import read_lines
from redraft.training.objective import ObjectiveConfig
from redraft.training.parallel import ParallelConfig
from redraft.training.recipe import Recipe, load_recipe
from redraft.training.resume import check_recipe
from redraft.training.state import save_state, states
from redraft.training.step import train_step
from redraft.types import SamplingParams

NANO = Path(__file__).parents[2] / "recipes" / "nano.yaml"
TINY = [
    "model={hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, "
    "num_key_value_heads: 1, head_dim: 16, moe_intermediate_size: 16, num_experts: 4, num_experts_per_tok: 2, "
    "n_group: 1, topk_group: 1, max_position_embeddings: 512}",
    "tokenizer={vocab_size: 420, samples: 60}",
    "batch={samples: 2, length: 600}",
    "objective.copies=1",
    "objective.mtf={share: 0.5, start: 2}",
    "data.max_length=512",
    "data.skills={math: 1.0}",
    "data.bad_rows=skip",
    "run.log_every=1",
    "run.processes=1",
    "run.save_every=4",
    "schedule.warmup=1",
]
ELSEWHERE = """
import sys
from tests.training.test_loop import recipe
from pathlib import Path
from redraft.training.loop import train
train(recipe(Path(sys.argv[1]), *sys.argv[2:]), report=lambda line: print(int(line["step"]), flush=True))
"""


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The pictures that a run asked for; drawing them, half a second each, has its own tests."""
    pictures: list[Path] = []
    monkeypatch.setattr(loop, "draw_curves", lambda metrics, picture: pictures.append(picture))
    return pictures


def recipe(folder: Path, *overrides: str) -> Recipe:
    return load_recipe(NANO, [*TINY, f"run.output={folder}", *overrides])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = states(folder)[-1].glob("model-*.safetensors")
    return load_file(file)


def names(folder: Path) -> list[int]:
    """The steps of a run's checkpoints."""
    return [int(path.name.rpartition("-")[2]) for path in states(folder)]


def assert_equal_weights(ours: Path, theirs: Path) -> None:
    a, b = weights(ours), weights(theirs)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, kind: str, drawn: list[Path]) -> None:
    options = (f"optimizer.kind={kind}", "schedule.steps=6")
    train(recipe(tmp_path / "whole", *options))
    run = open_run(recipe(tmp_path / "broken", *options))
    for _ in range(4):
        train_step(run)
    save(run)
    train_step(run)  # a step that is lost with the process
    train(recipe(tmp_path / "broken", *options))
    assert_equal_weights(tmp_path / "whole", tmp_path / "broken")
    for name in ("whole", "broken"):
        lines = read_lines(tmp_path / name / "metrics.jsonl")
        assert [line["step"] for line in lines] == ([1, 2, 3, 4, 5, 6] if name == "whole" else [5, 6])
        assert all(math.isfinite(line["draft_loss"]) for line in lines)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "whole" / "export" / name).stat().st_size > 0
    assert drawn == [tmp_path / "whole" / "curves.png", tmp_path / "broken" / "curves.png"]


def test_the_loss_falls(tmp_path: Path) -> None:
    run = open_run(recipe(tmp_path, "schedule.steps=100", "optimizer.rate=1e-2", "batch.samples=6"))
    losses = [train_step(run)["draft_loss"] for _ in range(25)]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_gradient_accumulation_does_not_change_a_step(tmp_path: Path) -> None:
    lines = []
    for length in (1200, 600, 300):
        packing = ("batch.samples=4", f"batch.length={length}", "data.max_length=300")
        options = (*packing, "objective.mtf.share=0", "optimizer.kind=adamw")
        run = open_run(recipe(tmp_path / str(length), *options))
        run.model.double()
        lines.append([train_step(run)["draft_loss"] for _ in range(3)])
    assert lines[0] == pytest.approx(lines[1], rel=1e-9) and lines[0] == pytest.approx(lines[2], rel=1e-9)


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


def test_unknown_skills_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="poetry"):
        open_run(recipe(tmp_path, "data.skills={poetry: 1.0}"))


# Stopping and breaking


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_writes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path, number: int) -> None:
    def stop_at_two(line: dict[str, float]) -> None:
        if line["step"] == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step 2; the same command resumes from .*"):
        train(recipe(tmp_path, "schedule.steps=50"), report=stop_at_two)
    assert names(tmp_path) == [2]
    assert signal.getsignal(number) is before


def test_only_a_second_ctrl_c_leaves_at_once_and_loses_nothing_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "AGAIN", 0.05)

    def impatient(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # the same one, passed on
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the evaluation went on")

    with pytest.raises(KeyboardInterrupt, match="left at once"):
        train(recipe(tmp_path, "schedule.steps=9", "run.evaluate_every=2"), evaluate=impatient)
    assert names(tmp_path) == [2]


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path: Path) -> None:
    def break_at_five(line: dict[str, float]) -> None:
        if line["step"] == 5:
            with torch.no_grad():
                broken[0].norm.weight[0] = math.nan

    broken: list[LLaDA2] = []

    def remember(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        broken.append(model)
        return {"score": 0.0}

    options = ("schedule.steps=9", "run.evaluate_every=4")
    with pytest.raises(NumericalError, match="step 5"):
        train(recipe(tmp_path, *options), report=break_at_five, evaluate=remember)
    assert names(tmp_path) == [4]
    assert all(value.isfinite().all() for value in weights(tmp_path).values())
    train(recipe(tmp_path, *options))
    assert names(tmp_path)[-1] == 9


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("schedule.steps=6", "run.save_every=2")
    train(recipe(tmp_path / "whole", *options))
    written: list[Path] = []

    def fill_the_disk(tensors: dict[str, torch.Tensor], file: Path, metadata: Any) -> None:
        written.append(Path(file))
        if len(written) > 3:  # the second file of the second checkpoint
            Path(file).write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(tensors, file, metadata)

    whole: Callable[..., None] = storage.save_file
    monkeypatch.setattr(storage, "save_file", fill_the_disk)
    with pytest.raises(CheckpointError, match=r"step 4 could not be written: .*No space left on device") as error:
        train(recipe(tmp_path / "full", *options))
    assert "\n" not in str(error.value)
    assert names(tmp_path / "full") == [2]
    left = {path.name for path in (tmp_path / "full").iterdir()}
    assert left == {"metrics.jsonl", "recipe.json", "tokenizer", "state-00000002"}
    monkeypatch.setattr(storage, "save_file", whole)
    train(recipe(tmp_path / "full", *options))
    assert_equal_weights(tmp_path / "whole", tmp_path / "full")


def test_a_full_disk_at_the_export_says_that_the_checkpoint_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full, pytest.raises(CheckpointError, match="step 1 is whole, and the same command"):
        full.setattr(loop, "export", fill_the_disk)
        train(recipe(tmp_path, "schedule.steps=1"))
    assert (train(recipe(tmp_path, "schedule.steps=1")) / "model.safetensors").exists()


def test_a_run_killed_while_it_saves_goes_on_from_the_checkpoint_before(tmp_path: Path) -> None:
    """SIGKILL in a real process, at the moment that the second checkpoint is half written."""
    options = ("schedule.steps=4", "run.save_every=2")
    train(recipe(tmp_path / "whole", *options))
    slow_second_save = (
        "import time\n"
        "from redraft.model import storage\n"
        "whole, files = storage.save_file, []\n"
        "def slow(tensors, file, metadata):\n"
        "    files.append(file)\n"
        "    whole(tensors, file, metadata)\n"
        "    if len(files) == 3:\n"
        "        print('saving', flush=True)\n"
        "        time.sleep(60)\n"
        "storage.save_file = slow\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow_second_save + ELSEWHERE, str(tmp_path / "killed"), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(NANO.parents[1]), *sys.path])},
    )
    assert process.stdout is not None
    while process.stdout.readline() not in ("saving\n", ""):
        pass
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert names(tmp_path / "killed") == [2]
    assert (tmp_path / "killed" / ".writing").exists()
    train(recipe(tmp_path / "killed", *options))
    assert_equal_weights(tmp_path / "whole", tmp_path / "killed")
    assert not (tmp_path / "killed" / ".writing").exists()


def test_old_checkpoints_go_and_a_half_written_one_is_never_taken(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=7", "run.save_every=2"))
    assert names(tmp_path) == [6, 7]
    (tmp_path / "state-00000009").mkdir()
    assert names(tmp_path) == [6, 7]


# Resuming by another recipe


def test_a_used_folder_is_refused_without_resume(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    with pytest.raises(CheckpointError, match="already holds a run"):
        open_run(recipe(tmp_path, "schedule.steps=1"), resume=False)


def test_what_would_make_a_resumed_run_wrong_is_refused_by_name(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    kept = (tmp_path / "recipe.json").read_text()
    changed = ("model.num_hidden_layers=3", "optimizer.kind=adamw", "data.max_length=400", "batch.samples=3", "seed=5")
    with pytest.raises(ConfigError, match="can't go on by another recipe") as error:
        open_run(recipe(tmp_path, "schedule.steps=1", *changed, "optimizer.rate=1.0"))
    message = str(error.value)
    assert "\n" not in message and "optimizer.rate" not in message
    for part in ("model.num_hidden_layers was 2 and is 3", 'optimizer.kind was "muon" and is "adamw"', "seed was 1"):
        assert part in message
    assert "data.max_length was 512" in message and "batch.samples was 2" in message
    assert (tmp_path / "recipe.json").read_text() == kept
    with pytest.raises(ConfigError, match=r'objective\.kind was "documents" and is "preference"'):
        check_recipe(tmp_path, replace(recipe(tmp_path), objective=ObjectiveConfig(kind="preference"), start="x"))


def test_what_may_change_between_two_starts(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    free = (
        *("schedule.steps=3", "schedule.decay=0.1", "optimizer.rate=1e-4", "optimizer.clip=0.5"),
        *("objective.edit_weight=0.5", "batch.length=300", "run.log_every=2", "data.check=schema"),
    )
    train(recipe(tmp_path, *free))
    assert names(tmp_path)[-1] == 3
    assert json.loads((tmp_path / "recipe.json").read_text())["optimizer"]["rate"] == 1e-4


def test_keys_that_an_older_version_did_not_write_do_not_count(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    file = tmp_path / "recipe.json"
    old = json.loads(file.read_text())
    del old["data"]["max_length"], old["tokenizer"]
    file.write_text(json.dumps(old))
    assert open_run(recipe(tmp_path, "schedule.steps=1", "data.max_length=300")).step == 1


def test_data_that_changed_behind_their_name_are_refused(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    options = (f"data={{sources: [{{path: {rows}}}], max_length: 512}}", "tokenizer.vocab_size=300", "schedule.steps=1")
    train(recipe(tmp_path / "run", *options))
    rows.write_text('{"prompt": "c", "completion": "d"}\n' * 5)
    with pytest.raises(ConfigError, match=r"data of the run .* have changed"):
        open_run(recipe(tmp_path / "run", *options))


def test_a_tokenizer_without_a_checkpoint_is_made_again(tmp_path: Path) -> None:
    open_run(recipe(tmp_path, "tokenizer={vocab_size: 300, samples: 60}"))
    assert open_run(recipe(tmp_path)).tokenizer.vocab_size > 300


def test_a_checkpoint_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    train(recipe(tmp_path / "two", "schedule.steps=1"))
    other = recipe(tmp_path / "three", "schedule.steps=1", "model.num_hidden_layers=3")
    train(other)
    (state,) = states(tmp_path / "two")
    shutil.rmtree(states(tmp_path / "three")[0])
    shutil.copytree(state, tmp_path / "three" / state.name)
    with pytest.raises(CheckpointError, match="cannot resume") as error:
        open_run(other)
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    train(recipe(tmp_path, "schedule.steps=1"))
    (state,) = states(tmp_path)
    (file,) = state.glob("model-*")
    file.rename(state / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"an earlier version.*choose another run\.output"):
        open_run(recipe(tmp_path, "schedule.steps=2"))


def test_rows_left_out_at_their_turn_are_reported_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "a b", "completion": "c"}, {"prompt": "a", "completion": "b " * 600}]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    source = f"skills: {{}}, sources: [{{path: {tmp_path}/rows.jsonl}}]"
    data = f"data={{{source}, check: schema, bad_rows: skip, max_length: 64}}"
    train(recipe(tmp_path / "run", "schedule.steps=2", data))
    (message,) = [r.getMessage() for r in caplog.records if "their turn" in r.getMessage()]
    assert "rows.jsonl:2" in message


# Evaluation


def test_an_evaluation_does_not_change_the_run(tmp_path: Path) -> None:
    """It generates with the live weights, draws from every generator and leaves the model in evaluation mode."""

    def disturb(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        llm = LLM.from_model(model, tokenizer)
        completion = llm.generate(["1 + 1 ="], SamplingParams(max_tokens=8))[0]
        random.shuffle([1, 2, 3])
        torch.rand(3)
        loads = [module.load.sum().item() for module in model.modules() if isinstance(module, Router)]
        assert loads and not any(loads) and not model.training
        return {"score": 1.0, "tokens": float(len(completion.token_ids))}

    options = ("schedule.steps=5", "run.evaluate_every=2", "run.save_every=2")
    train(recipe(tmp_path / "without", *options))
    train(recipe(tmp_path / "with", *options), evaluate=disturb)
    assert_equal_weights(tmp_path / "without", tmp_path / "with")
    lines = read_lines(tmp_path / "with" / "metrics.jsonl")
    assert [line["step"] for line in lines if "eval_score" in line] == [2, 4, 5]
    assert all(line["eval_score"] == 1.0 for line in lines if "eval_score" in line)


def scores(*values: float) -> Callable[[LLaDA2, Tokenizer], dict[str, float]]:
    given = iter(values)
    return lambda model, tokenizer: {"score": next(given)}


def test_the_best_checkpoints_outlive_newer_ones(tmp_path: Path) -> None:
    options = ("schedule.steps=7", "run.evaluate_every=1", "run.keep=1", "run.average=2")
    train(recipe(tmp_path, *options), evaluate=scores(0.1, 0.9, 0.3, 0.8, 0.5, 0.2, 0.4, 0.95))
    assert names(tmp_path) == [2, 4, 7]
    assert [score_of(state) for state in states(tmp_path)] == [0.9, 0.8, 0.4]
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert lines[-1]["eval_average_score"] == 0.95  # the mean of steps 2 and 4
    exported = load_file(tmp_path / "export" / "model.safetensors")
    two, four = (load_file(next(states(tmp_path)[i].glob("model-*"))) for i in (0, 1))
    mean = ((two["norm.weight"] + four["norm.weight"]) / 2).bfloat16()
    assert torch.equal(exported["model.norm.weight"], mean)
    train(recipe(tmp_path, *options), evaluate=scores(0.95))  # nothing to do but the mean and the export
    assert names(tmp_path) == [2, 4, 7]


def test_the_last_evaluation_leaves_no_checkpoint_that_it_displaced(tmp_path: Path) -> None:
    options = ("schedule.steps=3", "run.evaluate_every=1", "run.keep=1", "run.average=2")
    train(recipe(tmp_path, *options), evaluate=scores(0.5, 0.9, 0.95, 0.7))
    assert names(tmp_path) == [2, 3]


def test_without_scores_the_last_checkpoints_are_averaged(tmp_path: Path) -> None:
    folder = train(recipe(tmp_path, "schedule.steps=6", "run.save_every=1", "run.keep=1", "run.average=3"))
    assert names(tmp_path) == [4, 5, 6]
    parts = [load_file(next(state.glob("model-*")))["norm.weight"] for state in states(tmp_path)]
    exported = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(exported, (sum(parts[1:], parts[0]) / 3).bfloat16())
    assert not torch.equal(exported, parts[-1].bfloat16())


def test_a_missed_evaluation_is_made_up_for(tmp_path: Path) -> None:
    def killed(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        raise ConnectionError

    options = ("schedule.steps=4", "run.evaluate_every=2", "run.keep=5")
    with pytest.raises(ConnectionError):
        train(recipe(tmp_path, *options), evaluate=killed)
    train(recipe(tmp_path, *options), evaluate=scores(0.25, 0.75))
    assert [score_of(state) for state in states(tmp_path)] == [0.25, 0.75]
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["eval_score"]) for line in lines if "eval_score" in line] == [(2, 0.25), (4, 0.75)]


@pytest.mark.parametrize("parallel", [ParallelConfig(), ParallelConfig(data="shard", experts=2)])
def test_an_evaluation_over_processes_is_that_of_one(tmp_path: Path, parallel: ParallelConfig) -> None:
    """The first process answers; the others take their part in its forwards where the model is cut."""
    alone, together = tmp_path / "1", tmp_path / "2"
    _evaluate_after_a_step(Case(parallel=ParallelConfig()), alone)
    in_processes(2, _evaluate_after_a_step, Case(parallel=parallel), together)
    assert (alone / "answer").read_text() == (together / "answer").read_text()
    assert score_of(states(together)[-1]) == 8.0


def _evaluate_after_a_step(case: Case, folder: Path) -> None:
    run = open_case(case, folder)
    train_step(run)
    save_state(folder, run.step, run.distributed, run.optimizer, {}, keep=2)

    def answer(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        llm = LLM.from_model(model, control=ControlIds(mask=MASK), block_length=4)
        (completion,) = llm.generate([1, 2, 3, 5], SamplingParams(max_tokens=8, ignore_eos=True))
        (folder / "answer").write_text(str(completion.token_ids))
        return {"score": float(len(completion.token_ids))}

    evaluate_run(run, answer, Log(run, None))
    train_step(run)
