"""What a training run shows, and what it is evaluated by."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model

from redraft.cli.train import Progress, duration, losses, scores
from redraft.cli.validate import evaluator, held_out
from redraft.errors import ConfigError, InvalidInput
from redraft.model.folder import checkpoint_folder
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import DataConfig
from redraft.training.recipe import Recipe, RunConfig


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(number: int) -> dict[str, float]:
    return {"step": number, "loss": 3.0, "draft_loss": 1.25, "edit_loss": 0.5, "positions_per_second": 1234.5}


def test_plain_lines_come_now_and_then_with_the_time_left_at_the_pace_since_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Progress(1000, clock) as progress:
        clock.now += 50  # building the model is no part of the pace
        progress.show({"step": 900})
        for number in range(901, 1001):
            clock.now += 3
            progress.show(step(number))
            if number == 950:
                clock.now += 30
                progress.show({"step": 950, "positions": 9, "eval_score": 0.5, "eval_Q_accuracy": 0.6})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "continues after step 900 of 1000"
    assert lines[1] == "901/1000  draft 1.250  edit 0.500  1,234 positions/s  4:57 left"  # 99 steps of 3 s
    assert lines[2].startswith("905/1000") and lines[3].startswith("909/1000")
    assert "950/1000  evaluation: score 0.500  Q accuracy 0.600" in lines
    after = next(line for line in lines if line.startswith("951/1000"))
    assert after.endswith("  2:56 left")  # 49 steps of (51 * 3 + 30) / 51 s, the time of the evaluation included
    assert lines[-1] == "1000/1000  draft 1.250  edit 0.500  1,234 positions/s"
    assert len(lines) < 32


def test_a_fresh_run_continues_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2, Clock()) as progress:
        progress.show({"step": 0})
        progress.show(step(1))
    assert capsys.readouterr().err.splitlines() == ["1/2  draft 1.250  edit 0.500  1,234 positions/s  0s left"]


def test_numbers_as_they_are_shown() -> None:
    assert losses({"loss": 0.7, "preference_loss": 0.69, "margin": 0.1}) == "preference 0.690"
    assert losses({"loss": 0.7}) == "loss 0.700"
    assert (
        scores({"eval_score": -2.5, "eval_bits": 2.5, "eval_bits_error": 0.1}) == "evaluation: score -2.500  bits 2.500"
    )
    assert scores({"eval_average_score": 0.5}) == "mean of the best checkpoints: score 0.500"
    assert [duration(seconds) for seconds in (9.4, 59.6, 200, 7400)] == ["9s", "1:00", "3:20", "2:03:20"]


def recipe(items: int = 6, data: str = "", **settings: str) -> Recipe:
    run = RunConfig(evaluate_every=5, evaluate_items=items, evaluate_data=data, **settings)  # type: ignore[arg-type]
    return Recipe(run=run, data=DataConfig(skills={"math": 1.0, "reasoning": 1.0}))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(checkpoint_folder(None))


def test_no_evaluation_without_a_wish() -> None:
    assert evaluator(Recipe()) is None
    with pytest.raises(ConfigError, match=r"run.evaluate_data must be a file of rows, got 'none.jsonl'"):
        evaluator(recipe(data="none.jsonl", evaluate="elbo"))


def test_the_bound_on_held_out_rows_is_the_same_each_time(tokenizer: Tokenizer) -> None:
    evaluate = evaluator(recipe(items=4, evaluate="elbo"))
    assert evaluate is not None
    model = tiny_model(
        vocab_size=tokenizer.vocab_size + 1,
        mask_token_id=tokenizer.mask_id,
        wide=0.02,
        block_length=32,
    ).eval()
    first = evaluate(model, tokenizer)
    assert first == evaluate(model, tokenizer)
    # A random network knows less than nothing.
    assert first["bits"] > math.log2(tokenizer.vocab_size)
    assert first["score"] == -first["bits"] and 0 < first["bits_error"] < 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    rows = held_out(recipe(items=4, evaluate="elbo"), tokenizer, 512)
    learnt = sum(int(row.supervised.sum()) for row in rows)
    filled = learnt + sum(-len(row) % 32 for row in rows)  # the EOS up to the end of the last block count
    uniform = math.log2(tokenizer.vocab_size + 1) * filled / learnt
    assert evaluate(model, tokenizer)["bits"] == pytest.approx(uniform, rel=1e-5)


def test_held_out_rows_of_a_file_or_of_the_skills(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 + 1 =", "completion": " 2"}\n' * 9)
    assert len(held_out(recipe(items=4, data=str(rows), evaluate="elbo"), tokenizer, 1024)) == 4
    assert len(held_out(recipe(items=99, data=str(rows), evaluate="elbo"), tokenizer, 1024)) == 9
    assert len(held_out(recipe(items=4, evaluate="elbo"), tokenizer, 1024)) == 4
    with pytest.raises(InvalidInput, match="no held-out row has at most 3 tokens"):
        held_out(recipe(items=4, evaluate="elbo"), tokenizer, 3)


def test_the_score_of_the_skills_is_the_mean_accuracy_of_both_modes(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redraft.eval.quick as quick

    asked: list[tuple[int, tuple[str, ...]]] = []

    def answers(llm: object, n: int, skills: tuple[str, ...]) -> dict[str, dict[str, float]]:
        asked.append((n, skills))
        same = {"tokens_per_forward": 2.0, "edits_per_100_tokens": 1.0}
        return {"Q": {"accuracy": 0.75, "math": 0.5, **same}, "S": {"accuracy": 0.25, "math": 0.0, **same}}

    monkeypatch.setattr(quick, "quick_accuracy", answers)
    model = tiny_model(vocab_size=tokenizer.vocab_size + 1, mask_token_id=tokenizer.mask_id)
    evaluate = evaluator(recipe(items=12))
    assert evaluate is not None
    results = evaluate(model, tokenizer)
    assert asked == [(12, ("math", "reasoning"))] and results["score"] == 0.5
    assert results["Q_accuracy"] == 0.75 and results["S_tokens_per_forward"] == 2.0 and results["Q_math"] == 0.5
