"""The engine's benchmark on a tiny model: what it writes, what it holds its arms to, what counts in no ratio."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model

from bench import engine, floors, machine
from bench.engine_cases import SMALL, Bench, Case, Outcome, log_uniform
from bench.engine_report import agreement, summary, table
from bench.spine import CachedContext
from redraft.engine.context import UncachedContext
from redraft.model.network import LLaDA2


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody else uses, with rates that take no time to find."""
    monkeypatch.setattr(floors, "measure", lambda dtype: floors.Rates(1e9, 1e9))
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As little work as shows everything."""
    little = replace(SMALL, mixed_longest=64, together=2, mixed=4, shared=3)
    monkeypatch.setattr(engine, "SMALL", little)


def run(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = engine.main(["--tiny", "--dtype", "float32", "--threads", "1", "--out", str(out), *arguments])
    return code, json.loads(out.read_text())["parts"]


@pytest.mark.usefixtures("small")
def test_all_parts_do_the_same_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In float32 every arm gives the same tokens by as many forwards."""
    out = tmp_path / "new" / "out.json"
    _, parts = run(out, "--repeats", "1")
    assert list(parts) == ["a", "b1", "b2", "c", "d", "e"]
    for name, part in parts.items():
        assert part["sound"], (name, part["checks"])
        assert {"machine", "settings", "rates", "command", "started", "seconds"} <= part.keys()
        assert part["machine"]["torch"] and "commit" in part["machine"] and part["settings"]["threads"] == 1
        first = part["summary"][0]
        assert first["ratio"]["median"] == 1.0 and first["seconds"]["min"] > 0
        for check in part["checks"]:
            assert check["same_work"] and check["answers_equal"] == check["answers"] > 0
    arms = {name: {(run["case"], run["arm"]): run for run in part["runs"]} for name, part in parts.items()}
    assert all(run["tokens"] == 64 and run["forwards"] == 16 for run in arms["a"].values())
    together, alone = (arms["b1"]["2 requests", arm] for arm in ("together", "one by one"))
    assert together["facts"]["engine_forwards"] == 16 and alone["facts"]["engine_forwards"] == 32
    chunks, blocks = (arms["c"]["prompt 256", arm] for arm in ("chunks of 128", "a block a forward"))
    # The last chunk brings the open block along, so that one forward fewer is the prompt's alone.
    assert chunks["facts"]["engine_forwards"] == 2 + 7 and blocks["facts"]["engine_forwards"] == 8 + 7
    tree, none = (arms["d"]["3 requests, 128 tokens shared", arm]["facts"] for arm in ("radix tree", "none"))
    assert tree["cached_tokens"] == 2 * 128 and none["cached_tokens"] == 0
    assert none["prefill_tokens"] - tree["prefill_tokens"] == 2 * 128
    contexts = [floor["context"] for floor in parts["e"]["floors"]]
    assert contexts == [64, 128, 64, 128] and len(parts["e"]["summary"]) == 6
    shown = capsys.readouterr().out
    assert "work the same" in shown and "floor of 1 x context 64" in shown
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.usefixtures("small")
def test_a_run_leaves_the_parts_of_others(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run(out, "--parts", "c", "--repeats", "2")
    _, parts = run(out, "--parts", "a", "--repeats", "1")
    assert list(parts) == ["a", "c"]
    assert len(parts["a"]["runs"]) == 2 and len(parts["c"]["runs"]) == 4
    assert [one["round"] for one in parts["c"]["runs"]] == [0, 0, 1, 1]


@pytest.mark.usefixtures("small")
def test_what_does_not_fit_is_left_out_and_listed(tmp_path: Path) -> None:
    _, parts = run(tmp_path / "out.json", "--parts", "c", "--repeats", "3", "--budget-seconds", "0.001")
    assert not parts["c"]["runs"] and not parts["c"]["sound"]
    assert [one["round"] for one in parts["c"]["skipped"]] == [0, 1, 2]


def test_static_batches_wait_for_their_slowest(tiny_bench: Bench) -> None:
    """All rows of a batch run as long as its longest answer; what is too long is cut."""
    lengths = log_uniform(SMALL.mixed, SMALL.mixed_shortest, SMALL.mixed_longest, 0)
    (case,) = tiny_bench.cases(["b2"])
    outcomes = {name: arm(0) for name, arm in case.arms.items()}
    for outcome in outcomes.values():
        assert [len(tokens) for tokens in outcome.tokens] == lengths
    steps = [-(-length // 32) * 4 for length in lengths]
    pairs = [steps[i : i + SMALL.mixed_slots] for i in range(0, len(steps), SMALL.mixed_slots)]
    slowest = sum(max(pair) for pair in pairs)
    assert outcomes["static"].forwards == SMALL.mixed_slots * slowest
    assert outcomes["static"].facts["engine_forwards"] == slowest
    assert outcomes["static, short rows leave"].facts["engine_forwards"] == slowest
    assert outcomes["continuous"].forwards == outcomes["static, short rows leave"].forwards == sum(steps)
    assert outcomes["continuous"].facts["engine_forwards"] < slowest


@pytest.fixture
def tiny_bench() -> Bench:
    model = tiny_model(dtype=torch.float64, vocab_size=64, mask_token_id=63, eos_token_id=None, pad_token_id=None)
    return Bench(model, SMALL, 0)


def test_rounds_have_prompts_of_their_own(tiny_bench: Bench) -> None:
    """Or the second round would find the first one's pages."""
    case = tiny_bench.cases(["d"])[0]
    first, second = (case.arms["radix tree"](turn).facts["cached_tokens"] for turn in (0, 1))
    assert first == second == (SMALL.shared - 1) * SMALL.shared_prompt


def test_lengths_are_log_uniform_and_repeatable() -> None:
    lengths = log_uniform(2000, 16, 512, 0)
    assert lengths == log_uniform(2000, 16, 512, 0) != log_uniform(2000, 16, 512, 1)
    assert min(lengths) >= 16 and max(lengths) <= 512
    assert np.mean(np.array(lengths) < 90) == pytest.approx(0.5, abs=0.05)  # 90 is the geometric mean


@pytest.mark.parametrize("block", [8, 32])
def test_the_spine_agrees_with_recomputation(block: int) -> None:
    model = tiny_model(dtype=torch.float64, block_routing=3)
    draws = np.random.default_rng(0)
    spine, oracle = CachedContext(model, 256, block, prefill_chunk=64), UncachedContext(model, block)
    prompt = draws.integers(0, 31, 160)
    for context in (spine, oracle):
        context.commit(prompt)
    for kept in (True, False, True):
        tokens = draws.integers(0, 31, block)
        assert_equal(model, spine, oracle, tokens)
        committed = tokens if kept else draws.integers(0, 31, block)
        for context in (spine, oracle):
            context.commit(committed)
    assert spine.prefill_forwards == 2


def assert_equal(model: LLaDA2, spine: CachedContext, oracle: UncachedContext, tokens: np.ndarray) -> None:
    hidden = spine.forward(tokens)
    torch.testing.assert_close(hidden, oracle.forward(tokens), rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        assert torch.equal(spine.head(hidden), model.head(hidden.clone()))


def fake(seconds: dict[str, list[float]], void: tuple[tuple[str, int], ...] = ()) -> tuple[list[Case], list[dict]]:
    arms: dict[str, Callable[[int], Outcome]] = {arm: lambda turn: Outcome(1.0) for arm in seconds}
    case = Case("a", "case", arms, {"slow": 1.5}, ("slow",), ("slow",))
    runs = [
        {"case": "case", "arm": arm, "round": turn, "seconds": value, "facts": {}, "void": (arm, turn) in void}
        | ({"same_work": True, "answers_equal": 1, "answers": 2} if arm == "slow" else {})
        for arm, values in seconds.items()
        for turn, value in enumerate(values)
    ]
    return [case], runs


def test_void_runs_count_in_no_ratio() -> None:
    cases, runs = fake({"fast": [1.0, 1.0, 100.0], "slow": [2.0, 50.0, 2.0]}, (("fast", 2), ("slow", 1)))
    known = summary(cases, runs, exact=False)
    row = known["summary"][1]
    assert row["ratio"]["median"] == 2.0 and row["ratio"]["repeats"] == 1 and row["void"] == 1
    assert row["met"] and known["met"] and known["sound"]
    nothing = summary(cases, [one | {"void": True} for one in runs], exact=False)
    assert not nothing["sound"] and nothing["summary"][1]["ratio"] is None
    assert "void" in table({"a": nothing | {"skipped": []}})


def test_a_missed_target_and_other_work_show() -> None:
    cases, runs = fake({"fast": [1.0, 1.0, 1.0], "slow": [1.1, 1.2, 3.0]})
    missed = summary(cases, runs, exact=False)
    assert missed["sound"] and not missed["met"] and missed["summary"][1]["ratio"]["upper_quartile"] == 2.1
    assert not summary(cases, runs, exact=True)["sound"]  # one of two answers is equal
    runs[-1]["same_work"] = False
    assert not summary(cases, runs, exact=False)["sound"]


def test_agreement_counts_what_is_equal() -> None:
    first = Outcome(1.0, ((1, 2), (3, 4)), 8)
    assert agreement(Outcome(1.0, ((1, 2), (3, 5)), 8), first, forwards=True) == {
        "same_work": True,
        "answers_equal": 1,
        "answers": 2,
    }
    assert not agreement(Outcome(1.0, ((1, 2), (3, 4)), 9), first, forwards=True)["same_work"]
    assert agreement(Outcome(1.0, ((1, 2), (3, 4)), 9), first, forwards=False)["same_work"]
    assert not agreement(Outcome(1.0, ((1, 2), (3,)), 8), first, forwards=True)["same_work"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "f"], "invalid choice: 'f'"),
        (["--repeats", "0"], "must be a positive integer, got 0"),
        (["--budget-seconds", "0"], "above 0, got 0"),
        (["--tiny"], "--tiny needs --out"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        engine.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
