from __future__ import annotations

import json
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from redraft.cli.main import run
from redraft.eval.suites import SUITES
from redraft.eval.suites.llada21 import benchmarks, in_cache, markdown, statuses


def test_all_benchmarks_of_the_report_are_there() -> None:
    found = benchmarks()
    assert len({each.name for each in found}) == len(found) == 33
    columns = ([(each.mini_speed[part], each.mini_quality[part]) for each in found] for part in (0, 1))
    means = [tuple(round(sum(values) / 33, 2) for values in zip(*column, strict=True)) for column in columns]
    assert means == [(62.07, 63.90), (5.34, 3.12)]  # the report's own averages
    assert {each.near for each in found} <= {"", *SUITES}


def test_each_either_has_a_task_of_the_harness_or_a_reason() -> None:
    known = set(TaskManager().all_tasks)
    for each in benchmarks():
        assert bool(each.task) != bool(each.missing), each.name
        assert not each.task or each.task in known, each.name


def test_what_can_run_here_depends_on_the_data() -> None:
    everything = statuses("path/to/model", cached=lambda dataset: True)
    assert sum(each.runs for each in everything) == sum(bool(b.task) for b in benchmarks()) == 16
    gpqa = everything[0]
    assert gpqa.runs and "--tasks gpqa_diamond_cot_zeroshot" in gpqa.note and "model=path/to/model" in gpqa.note
    nothing = statuses(cached=lambda dataset: False)
    assert not any(each.runs for each in nothing)
    assert "Idavidrein/gpqa is not in the cache" in nothing[0].note
    assert all(each.note for each in everything)


def test_the_hub_is_asked_about_only_when_it_may_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not in_cache("google/IFEval")
    (tmp_path / "datasets--google--IFEval").mkdir()
    assert in_cache("google/IFEval")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert in_cache("some/thing")


def test_the_command_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "--suite", "llada2.1"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n| ") == 34 + 1 and "similar: --suite bfcl" in out and out == markdown(statuses())
    assert run(["eval", "--suite", "llada2.1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 33
