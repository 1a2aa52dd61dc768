from __future__ import annotations

import json
from pathlib import Path

import pytest

from redraft.engine.named import modes_of, with_mode, write_mode
from redraft.errors import InvalidInput
from redraft.types import SamplingParams

FAST = {"threshold": 0.4, "edit_threshold": 0.0, "mbe_blocks": 1}


def test_modes_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "modes.json"
    write_mode(path, "code", FAST, {"budget": 1})
    write_mode(path, "math", {"edit_threshold": "off"}, {})
    write_mode(path, "math", {"threshold": 0.8}, {})
    assert modes_of(path.parent) == modes_of(tmp_path, path) == {"code": FAST, "math": {"threshold": 0.8}}
    assert json.loads(path.read_text())["code"]["about"] == {"budget": 1}
    assert [each.name for each in path.parent.iterdir()] == ["modes.json"]
    assert modes_of(tmp_path) == {}


def test_a_request_outranks_its_mode() -> None:
    modes = {"code": FAST}
    assert with_mode({"mode": "code", "threshold": 0.9, "seed": 1}, modes) == {**FAST, "threshold": 0.9, "seed": 1}
    assert SamplingParams(**with_mode({"mode": "code"}, modes)) == SamplingParams(**FAST)
    for fields in ({"mode": "speed", "threshold": 0.9}, {"seed": 1}, {}):
        assert with_mode(fields, modes) == fields
    with pytest.raises(InvalidInput, match="mode must be one of speed, quality, draft-only, code, got 'fast'"):
        with_mode({"mode": "fast"}, modes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not readable as JSON"),
        ("[]", "must hold modes by their names, got list"),
        ('{"Code": {}}', "name must be lower-case"),
        ('{"speed": {}}', "none of speed, quality"),
        ('{"": {}}', "name must be"),
        ('{"code": 1}', "must be an object of settings, got int"),
        ('{"code": {"temperature": 1}}', "unknown setting 'temperature'"),
        ('{"code": {"threshold": -1}}', "mode 'code': threshold must be"),
        ('{"code": {"mode": "speed"}}', "unknown setting 'mode'"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "modes.json").write_text(content)
    with pytest.raises(InvalidInput, match=words) as caught:
        modes_of(tmp_path)
    assert "modes.json" in str(caught.value)


def test_files_that_can_not_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read modes"):
        modes_of(tmp_path, tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="name must be"):
        write_mode(tmp_path / "modes.json", "speed", FAST, {})
    with pytest.raises(InvalidInput, match="threshold"):
        write_mode(tmp_path / "modes.json", "code", {"threshold": "x"}, {})
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match="cannot write modes"):
        write_mode(Path("/dev/null/modes.json"), "code", FAST, {})
