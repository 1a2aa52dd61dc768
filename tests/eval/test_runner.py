from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from eval_fakes import FakeLLM
from tests.tiny import tiny_model

from redraft.engine.llm import LLM
from redraft.errors import CheckpointError, InvalidInput
from redraft.eval.records import RecordLog
from redraft.eval.runner import fingerprint, in_process, in_processes, run
from redraft.eval.settings import SPEED, SPEED_UNEDITED, Setting
from redraft.eval.skills import draw_items
from redraft.model.checkpoint import save_model
from redraft.skills import SKILLS
from redraft.text.build import train_tokenizer

BOTH = (SPEED, SPEED_UNEDITED)
TWO_SKILLS = {name: SKILLS[name] for name in ("math", "structured")}


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
    items = draw_items(0, 4, "both", TWO_SKILLS)
    path, progress = tmp_path / "records.jsonl", []
    first = FakeLLM(items, fail_after=7)
    with RecordLog(path) as log, pytest.raises(KeyboardInterrupt):
        run(items, BOTH, "m", log, in_process(first, "m"))
    second = FakeLLM(items)
    with RecordLog(path) as log:
        assert len(log.records) == 6  # three items; the answer to half of the fourth is lost
        records = run(items, BOTH, "m", log, in_process(second, "m"), lambda *counts: progress.append(counts))
    assert second.calls == len(items) * 2 - 6
    assert (progress[0], progress[-1]) == ((6, 16), (16, 16))
    assert [record.key for record in records] == [("m", item.key, each.key) for item in items for each in BOTH]


def test_only_what_is_new_is_answered(tmp_path: Path) -> None:
    items = draw_items(0, 2, "both", TWO_SKILLS)
    more = (*BOTH, Setting(0.3, 0.0))
    with RecordLog(tmp_path / "records.jsonl") as log:

        def calls(model: str, settings: Sequence[Setting]) -> int:
            llm = FakeLLM(items)
            records = run(items, settings, model, log, in_process(llm, model))
            assert {record.model for record in records} == {model}
            return llm.calls

        assert calls("m", BOTH) == 8
        assert calls("m", BOTH) == 0
        assert calls("m", more) == 4
        assert calls("other weights", more) == 12


def test_processes_give_the_answers_of_one(checkpoint: Path, tmp_path: Path) -> None:
    items = draw_items(0, 1, "seen", TWO_SKILLS)
    fast = (Setting(0.0, "off"), Setting(0.0, 0.5))  # a random model is unsure: the whole block at once
    with RecordLog(tmp_path / "a.jsonl") as log:
        together = run(items, fast, "m", log, in_processes(checkpoint, "m", 2))
    with RecordLog(tmp_path / "b.jsonl") as log:
        alone = run(items, fast, "m", log, in_process(LLM(checkpoint, device="cpu"), "m"))
    assert len(together) == 4

    def answers(records):
        return [(r.key, r.response, r.tokens, r.forwards, r.edits) for r in records]

    assert answers(together) == answers(alone)
    assert all(record.seconds > 0 for record in together)


@pytest.mark.slow
def test_an_error_of_a_worker_arrives(tmp_path: Path) -> None:
    items = draw_items(0, 1, "seen", TWO_SKILLS)
    with RecordLog(tmp_path / "a.jsonl") as log, pytest.raises(CheckpointError):
        run(items, BOTH, "m", log, in_processes(tmp_path, "m", 1))


@pytest.mark.parametrize("processes", [0, -1, True])
def test_processes_are_counted_from_one(processes: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="processes"):
        in_processes(tmp_path, "m", processes)


def test_the_fingerprint_is_of_all_that_decides_the_answers(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return fingerprint(tmp_path)

    first = write("model.safetensors", "weights")
    assert write("README.md", "a card") == first
    second = write("config.json", "{}")
    third = write("model.safetensors", "other weights")
    assert len({first, second, third}) == 3
    assert write("model.safetensors", "weights") == second
