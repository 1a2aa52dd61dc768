"""Datasets through the `datasets` package, all from the disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets.config
import pytest

from redraft.errors import ConfigError, InvalidInput
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import DataConfig, RowSource, SourceConfig, open_source
from redraft.types import Sample


def opened(tokenizer: Tokenizer, path: Path | str, *, shuffle: bool = False, **source: Any) -> RowSource[Sample]:
    config = DataConfig(sources=(SourceConfig(path=str(path), **source),), shuffle=shuffle)
    return open_source(config, tokenizer, seed=0, total=100)


def texts_of(tokenizer: Tokenizer, source: RowSource[Sample], indices: Any) -> list[str]:
    return [tokenizer.decode(sample.tokens.tolist()) for i in indices for sample in source.documents(i)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    data = datasets.Dataset.from_list([{"text": f"a{i}", "picture": [i]} for i in range(10)])
    datasets.DatasetDict({"train": data, "test": data.select([3])}).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_folder(tokenizer: Tokenizer, saved: Path) -> None:
    source = opened(tokenizer, saved)
    assert source.rows == 10
    assert texts_of(tokenizer, source, range(12)) == [f"a{i % 10}" for i in range(12)]
    assert texts_of(tokenizer, opened(tokenizer, saved, split="test"), [0]) == ["a3"]
    assert opened(tokenizer, saved).fingerprint == source.fingerprint
    with pytest.raises(ConfigError, match="no split 'dev'; it has train, test"):
        opened(tokenizer, saved, split="dev")


def test_arrow_fills_no_gaps_into_messages(tokenizer: Tokenizer, tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    rows = [
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Ann"}]},
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    from_arrow = opened(tokenizer, tmp_path / "saved")
    assert texts_of(tokenizer, from_arrow, [0, 1]) == [
        'x<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        "xAnn",
    ]


def test_bad_rows_are_named_by_dataset_and_row(tokenizer: Tokenizer, tmp_path: Path) -> None:
    datasets.Dataset.from_list([{"text": "a"}, {"text": " "}]).save_to_disk(tmp_path / "saved")
    with pytest.raises(InvalidInput, match=r"saved \(train\), row 1: text is empty"):
        opened(tokenizer, tmp_path / "saved")


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_files_that_datasets_reads(
    tokenizer: Tokenizer, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = datasets.Dataset.from_list([{"text": f"a{i}"} for i in range(3)])
    getattr(data, f"to_{ending}")(tmp_path / f"rows.{ending}")
    assert texts_of(tokenizer, opened(tokenizer, tmp_path / f"rows.{ending}"), range(3)) == ["a0", "a1", "a2"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_goes_on_where_it_stopped(tokenizer: Tokenizer, saved: Path, shuffle: bool) -> None:
    source = opened(tokenizer, saved, shuffle=shuffle, streaming=True, buffer=4)
    whole = texts_of(tokenizer, source, range(25))
    assert source.rows is None
    assert sorted(whole[:10]) == sorted(whole[10:20]) == [f"a{i}" for i in range(10)]
    assert (whole[:10] == whole[10:20]) is not shuffle
    for start in (4, 13):
        fresh = opened(tokenizer, saved, shuffle=shuffle, streaming=True, buffer=4)
        assert texts_of(tokenizer, fresh, range(start, 25, 2)) == whole[start::2]
        assert texts_of(tokenizer, fresh, [start]) == [whole[start]]  # backwards is slow, but right


def test_what_cannot_be_opened_is_one_line(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for path in ("nobody/nothing", tmp_path):
        with pytest.raises(ConfigError, match="can't open") as error:
            opened(tokenizer, path)
        assert "\n" not in str(error.value)


def test_without_the_package_the_error_says_what_to_install(
    tokenizer: Tokenizer, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'redraft\[train\]'"):
        opened(tokenizer, saved)
