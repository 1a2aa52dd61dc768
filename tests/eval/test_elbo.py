"""From rows to bits: what is scored, what counts, and the errors of the figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from redraft.errors import InvalidInput
from redraft.eval.elbo import Text, content, file_texts, markdown, skill_texts, summarise, write_report
from redraft.model.folder import checkpoint_folder
from redraft.text.tokenizer import Tokenizer
from redraft.training.likelihood import Estimate, Estimator
from redraft.types import Sample

ESTIMATOR = Estimator(block_length=4, mask_id=1, eos_ids=(0,), samples=16, seed=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(checkpoint_folder(None))


def text(tokens: int, size: int, group: str = "a", index: int = 0) -> Text:
    return Text(Sample(np.zeros(tokens + 2, np.int32), np.arange(tokens + 2) >= 2, index), group, size)


def nats(bits: float, error: float = 0.0) -> Estimate:
    return Estimate(-bits * math.log(2), error * math.log(2))


def test_rates_are_ratios_of_sums_with_errors_over_documents_and_masks() -> None:
    texts = [text(2, 10), text(4, 10), text(6, 20)]
    (row,) = summarise(texts, [nats(4, 0.3), nats(4, 0.4), nats(16)])
    assert (row.group, row.documents, row.tokens, row.bytes) == ("all", 3, 12, 40)
    assert row.per_token.value == pytest.approx(2) and row.per_byte is not None
    assert row.per_byte.value == pytest.approx(0.6)
    assert row.per_token.mask_error == pytest.approx(0.5 / 12)
    assert row.per_token.standard_error == pytest.approx(math.sqrt((0 + 16 + 16) * 3 / 2) / 12)


def test_the_standard_error_is_the_spread_of_the_figure_over_repeated_draws() -> None:
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(300):
        tokens = rng.integers(5, 50, 40)
        bits = tokens * (2 + 0.5 * rng.standard_normal(40))
        (row,) = summarise([text(int(n), 1) for n in tokens], [nats(float(b)) for b in bits])
        values.append(row.per_token.value)
        errors.append(row.per_token.standard_error)
    assert float(np.mean(errors)) == pytest.approx(float(np.std(values)), rel=0.15)  # type: ignore[arg-type]


def test_groups_follow_where_there_are_several() -> None:
    texts = [text(2, 10, "a"), text(4, 10, "b"), text(6, 20, "a")]
    rows = summarise(texts, [nats(2), nats(8), nats(6)])
    assert [(row.group, row.documents, row.per_token.value) for row in rows] == [
        ("all", 3, pytest.approx(16 / 12)),
        ("a", 2, pytest.approx(1)),
        ("b", 1, pytest.approx(2)),
    ]
    assert rows[2].per_token.standard_error is None
    with pytest.raises(InvalidInput, match="no document"):
        summarise([], [])


def test_control_tokens_alone_have_no_bytes() -> None:
    (row,) = summarise([text(1, 0)], [nats(3)])
    assert row.per_byte is None and row.per_token.value == pytest.approx(3)
    assert json.loads(json.dumps(content([row], ESTIMATOR, "m")))["rows"][0]["per_byte"] is None
    assert "| all | 1 | 1 | 0 |  | 3.0000 [0.0000] |" in markdown([row], ESTIMATOR, "m")


def test_the_report_says_how_it_was_made(tmp_path: Path) -> None:
    texts, estimates = [text(2, 10, index=5 + (1 << 40)), text(4, 10)], [nats(2, 0.5), nats(8)]
    rows = summarise(texts, estimates)
    report, shown = content(rows, ESTIMATOR, "m"), markdown(rows, ESTIMATOR, "m")
    assert report["estimator"] == {"kind": "stratified", "samples": 16, "block_length": 4, "seed": 3}
    assert "16 masks of each block, seed 3" in shown
    write_report(tmp_path / "out", texts, estimates, report, shown)
    assert json.loads((tmp_path / "out" / "elbo.json").read_text()) == report
    first = json.loads((tmp_path / "out" / "documents.jsonl").read_text().splitlines()[0])
    assert (first["row"], first["piece"], first["tokens"], first["bytes"]) == (5, 1, 2, 10)
    assert first["bits"] == pytest.approx(2) and first["mask_error"] == pytest.approx(0.5)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write the report"):
        write_report(tmp_path / "file", texts, estimates, report, shown)


def test_answers_of_a_file_are_scored_in_order(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": f"answer é {i}"}]}
        for i in range(5)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = file_texts(path, tokenizer, context=256, block_length=32)
    for i, one in enumerate(texts):
        scored = one.sample.tokens[one.sample.supervised].tolist()
        assert tokenizer.decode(scored) == f"answer é {i}" and one.bytes == len(f"answer é {i}".encode())
        assert scored[-1] in tokenizer.eos_ids and one.tokens == len(scored)
        assert (one.group, one.sample.index) == ("rows.jsonl", i)
    assert len(texts) == 5


def test_a_bad_row_is_fatal_or_left_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "some text"}\n{"text": ""}\n')
    with pytest.raises(InvalidInput, match=r"rows\.jsonl:2"):
        file_texts(path, tokenizer, context=256, block_length=32)
    assert len(file_texts(path, tokenizer, context=256, block_length=32, bad_rows="skip")) == 1


def test_skills_are_scored_on_their_answers(tokenizer: Tokenizer) -> None:
    texts = skill_texts(tokenizer, context=1024, per_skill=2)
    assert len({one.group for one in texts}) == len(texts) / 2
    assert len({one.sample.index for one in texts}) == len(texts)
    assert all(0 < one.tokens < len(one.sample.tokens) and one.bytes for one in texts)
