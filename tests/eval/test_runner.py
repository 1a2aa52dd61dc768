from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from eval_fakes import Capitals, FakeLLM
from tests.tiny import tiny_model

from redraft.engine.llm import LLM
from redraft.errors import CheckpointError, InvalidInput
from redraft.eval.answer import LocalModel
from redraft.eval.records import RecordLog
from redraft.eval.runner import Workers, fingerprint, in_batches, in_processes, run
from redraft.eval.settings import SPEED, SPEED_UNEDITED, Setting
from redraft.eval.skills import SkillSuite
from redraft.eval.task import graded
from redraft.model.checkpoint import save_model
from redraft.text.build import train_tokenizer

BOTH = (SPEED, SPEED_UNEDITED)
TWO = SkillSuite(0, 4, "both", ("math", "structured"))


def one_by_one(llm: object, model: str, suite: object = TWO) -> Workers:
    return in_batches(LocalModel(llm, model), suite)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(["a bit of text"], 300, folder)
    ids = {"mask_token_id": tokenizer.mask_id, "eos_token_id": tokenizer.eos_ids[0]}
    model = tiny_model(vocab_size=tokenizer.vocab_size, max_position_embeddings=1024, **ids)
    save_model(model, folder)
    return folder


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    items = TWO.items()
    path, progress = tmp_path / "records.jsonl", []
    first = FakeLLM(items, fail_after=7)
    with RecordLog(path) as log, pytest.raises(KeyboardInterrupt):
        run(items, BOTH, "m", log, one_by_one(first, "m"))
    second = FakeLLM(items)
    with RecordLog(path) as log:
        assert len(log.records) == 7  # three items, and the fourth at one of two settings
        records = run(items, BOTH, "m", log, one_by_one(second, "m"), lambda *counts: progress.append(counts))
    assert second.calls == len(items) * 2 - 7
    assert (progress[0], progress[-1]) == ((7, 16), (16, 16))
    assert [record.key for record in records] == [("m", item.key, each.key) for item in items for each in BOTH]


def test_only_what_is_new_is_answered(tmp_path: Path) -> None:
    items = replace(TWO, per_skill=2).items()
    more = (*BOTH, Setting(0.3, 0.0))
    with RecordLog(tmp_path / "records.jsonl") as log:

        def calls(model: str, settings: Sequence[Setting]) -> int:
            llm = FakeLLM(items)
            records = run(items, settings, model, log, one_by_one(llm, model))
            assert {record.model for record in records} == {model}
            return llm.calls

        assert calls("m", BOTH) == 8
        assert calls("m", BOTH) == 0
        assert calls("m", more) == 4
        assert calls("other weights", more) == 12


def test_processes_give_the_answers_of_one(checkpoint: Path, tmp_path: Path) -> None:
    suite = replace(TWO, per_skill=1, split="seen")
    items = suite.items()
    fast = (Setting(0.0, "off"), Setting(0.0, 0.5))  # a random model is unsure: the whole block at once
    with RecordLog(tmp_path / "a.jsonl") as log:
        together = run(items, fast, "m", log, in_processes(checkpoint, "m", 2, suite))
    with RecordLog(tmp_path / "b.jsonl") as log:
        alone = run(items, fast, "m", log, one_by_one(LLM(checkpoint, device="cpu"), "m"))
    assert len(together) == 4

    def answers(records):
        return [(r.key, r.response, r.tokens, r.forwards, r.edits) for r in records]

    assert answers(together) == answers(alone)
    assert all(record.seconds > 0 for record in together)


def test_workers_end_with_a_parent_that_is_killed() -> None:
    script = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from redraft.eval.runner import _prepare
pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(timeout=120)


@pytest.mark.slow
def test_an_error_of_a_worker_arrives(tmp_path: Path) -> None:
    suite = replace(TWO, per_skill=1, split="seen")
    items = suite.items()
    with RecordLog(tmp_path / "a.jsonl") as log, pytest.raises(CheckpointError):
        run(items, BOTH, "m", log, in_processes(tmp_path, "m", 1, suite))


@pytest.mark.parametrize("processes", [0, -1, True])
def test_processes_are_counted_from_one(processes: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="processes"):
        in_processes(tmp_path, "m", processes, TWO)


def test_the_fingerprint_is_of_all_that_decides_the_answers(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return fingerprint(tmp_path)

    first = write("model.safetensors", "weights")
    assert write("README.md", "a card") == write("modes.json", "{}") == first
    second = write("config.json", "{}")
    third = write("model.safetensors", "other weights")
    assert len({first, second, third}) == 3
    assert write("model.safetensors", "weights") == second


def test_a_batch_has_one_setting_and_shares_its_time(tmp_path: Path) -> None:
    suite = Capitals()
    items, sizes = suite.items(), []

    class Counting(LocalModel):
        def answer(self, items, setting):
            sizes.append((len(items), setting.key))
            return super().answer(items, setting)

    llm = FakeLLM(items)
    with RecordLog(tmp_path / "a.jsonl") as log:
        records = run(items, BOTH, "m", log, in_batches(Counting(llm, "m"), suite, 16))
    assert sizes == [(3, "0.5/0"), (3, "0.5/off")]
    assert [(record.item, record.setting) for record in records] == [(i.key, s.key) for i in items for s in BOTH]
    assert all(record.seconds < 0.4 for record in records), "the wall time, not the sum of what each one took"
    assert {params.max_tokens for params in llm.asked} == {40}


def test_edits_are_written_down(tmp_path: Path) -> None:
    suite, path = Capitals(), tmp_path / "a.jsonl"
    items = suite.items()
    with RecordLog(path) as log:
        records = run(items, (SPEED,), "m", log, in_batches(LocalModel(FakeLLM(items), "m", traced=True), suite, 2))
    assert {record.trace for record in records} == {((1, 0, 0, "<5>", "<6>"),)}
    with RecordLog(path) as log:
        assert list(log.records.values()) == records


def test_a_grader_that_fails_is_told_and_not_a_zero(tmp_path: Path) -> None:
    suite = Capitals(broken="Madrid")
    items = suite.items()
    with RecordLog(tmp_path / "a.jsonl") as log:
        records = run(items, (SPEED,), "m", log, in_batches(LocalModel(FakeLLM(items), "m"), suite))
    assert [(record.score, record.error) for record in records] == [
        (1.0, ""),
        (None, "grader: KeyError: 'no such thing'"),
        (1.0, ""),
    ]


@pytest.mark.parametrize("score", [True, None, 1.5, -0.1, float("nan"), "1"])
def test_a_score_that_is_none(score: object) -> None:
    class Odd(Capitals):
        def grade(self, item, response):
            return score

    found, error = graded(Odd(), Capitals().items()[0], "Paris")  # type: ignore[arg-type]
    assert found is None and error.startswith("grader: the score must be a number from 0 to 1")


def test_a_prompt_that_fills_the_context_has_no_answer(tmp_path: Path) -> None:
    class Short(FakeLLM):
        context_length = 8

        def render(self, messages, tools=None):
            return super().render(messages) * (9 if messages[0]["content"] == "Spain?" else 3)

    suite = Capitals()
    items = suite.items()
    llm = Short(items)
    with RecordLog(tmp_path / "a.jsonl") as log:
        records = run(items, (SPEED,), "m", log, in_batches(LocalModel(llm, "m"), suite, 4))
    assert [record.score for record in records] == [1.0, 0.0, 1.0]
    assert records[1].error == "the prompt of 9 tokens fills the context of 8" and records[1].tokens == 0
    assert [params.max_tokens for params in llm.asked] == [5, 5]


@pytest.mark.parametrize("batch", [0, -1, True])
def test_batches_are_counted_from_one(batch: int) -> None:
    with pytest.raises(InvalidInput, match="batch"):
        in_batches(LocalModel(None, "m"), TWO, batch)
