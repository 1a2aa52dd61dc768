from __future__ import annotations

from pathlib import Path

import pytest
from eval_fakes import record

from redraft.errors import InvalidInput
from redraft.eval.records import RecordLog


def test_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    written = [record(item="a"), record(item="b", response='line\nbreak "é" 界 \ud800'), record(item="c")]
    with RecordLog(path) as log:
        log.add(written[:1])
        log.add(written[1:])
    with RecordLog(path) as log:
        assert list(log.records) == [each.key for each in written]
        assert log.records["m", "a", "0.5/0"] == written[0]
        assert log.records["m", "b", "0.5/0"].response.startswith('line\nbreak "é" 界 ')


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordLog(path) as log:
        log.add([record(item="a"), record(item="b")])
    path.write_bytes(path.read_bytes()[:-5])
    with RecordLog(path) as log:
        assert [key[1] for key in log.records] == ["a"]
        log.add([record(item="c")])
    with RecordLog(path) as log:
        assert [key[1] for key in log.records] == ["a", "c"]


@pytest.mark.parametrize("line", ["[]", "{}", "no", '{"model": "m"}', "[" * 100_000])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InvalidInput, match="line 1 is no record"):
        RecordLog(path)
    assert path.read_text() == f"{line}\n"


def test_a_path_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write records"):
        RecordLog(tmp_path / "file" / "records.jsonl")
