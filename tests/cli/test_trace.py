from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import frames
from hypothesis import given
from hypothesis import strategies as st

from redraft.cli.frames import Finish, Frame
from redraft.cli.main import run
from redraft.cli.trace import Header, TraceWriter, read_trace
from redraft.errors import InvalidInput
from redraft.types import SamplingParams

HEADER = Header("0.1.0", "redraft-nano", "Max?", False, (0, 1), {"mode": "quality"})


def write(path: Path, items: list[Frame]) -> None:
    with TraceWriter(path, HEADER) as writer:
        for frame in items:
            writer.write(frame)


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written = frames()
    write(path, written)
    header, read = read_trace(path)
    assert header == HEADER
    assert [frame.to_json() for frame in read] == [frame.to_json() for frame in written]
    assert read[-1].finish == written[-1].finish


@st.composite
def any_frame(draw: st.DrawFn) -> Frame:
    size = draw(st.integers(0, 5))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    positions = st.frozensets(st.integers(0, size - 1)) if size else st.just(frozenset())
    finish = Finish("stop", draw(st.integers(0, 9)), 3, 2, 1, 0.25)
    return Frame(
        step=draw(st.integers(0, 99)),
        block=draw(st.integers(0, 99)),
        seconds=draw(st.integers(0, 10**6)) / 64,
        tokens=tuple(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))),
        texts=tuple(draw(st.lists(text, min_size=size, max_size=size))),
        confidence=tuple(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=size, max_size=size))),
        masked=draw(positions),
        drafted=draw(positions),
        prompt=draw(positions),
        edited=dict.fromkeys(draw(positions), draw(text)),
        deleted=draw(st.integers(0, 2)),
        inserted=draw(st.integers(0, 2)),
        frozen=draw(st.booleans()),
        text_delta=draw(text),
        finish=draw(st.sampled_from([None, finish])),
    )


@given(any_frame())
def test_frames_survive_json(frame: Frame) -> None:
    assert Frame.from_json(json.loads(json.dumps(frame.to_json()))) == frame


GOOD = frames()[2].to_json()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"step": "one"}, "step"),
        ({"step": True}, "step"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"tokens": [1, "x"]}, "tokens"),
        ({"texts": ["Max"]}, "texts"),
        ({"confidence": None}, "confidence"),
        ({"masked": [4]}, "masked"),
        ({"edited": {"9": "a"}}, "edited"),
        ({"edited": {"0": 5}}, "edited"),
        ({"frozen": 1}, "frozen"),
        ({"text_delta": 3}, "text_delta"),
        ({"finish": {"reason": "stop"}}, "tokens"),
        ({"finish": [1]}, "finish"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        Frame.from_json({**GOOD, **change})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"hello\n", "line 1: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b"{}\n", "line 1"),
        (b'{"redraft_trace": 2}\n', "redraft_trace"),
        (b'{"redraft_trace": 1, "version": "0"}\n', "model"),
    ],
)
def test_what_is_no_trace_is_one_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    assert run(["replay", str(path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert said in complaint


def test_a_broken_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.jsonl"
    write(path, frames())
    text = path.read_text()
    path.write_text(text[:-20])
    assert run(["replay", str(path)]) == 2
    assert "cut.jsonl line 6: not JSON" in capsys.readouterr().err


def test_replay_shows_the_text_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    write(path, frames())
    assert run(["replay", str(path)]) == 0
    assert capsys.readouterr().out == "Max has 5界\n"


def test_an_output_that_lacks_a_character_gets_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, frames())
    code = "from redraft.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "replay", str(path)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Max has 5?\n", b"")


def test_a_trace_that_was_interrupted_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    write(path, frames()[:4])
    assert run(["replay", str(path)]) == 0
    assert capsys.readouterr().out == "Max has \n"


@pytest.mark.parametrize("speed", ["0", "-1", "inf", "nan", "fast"])
def test_speed_is_checked(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "x.jsonl", "--speed", speed]) == 2
    assert "speed" in capsys.readouterr().err


def test_the_header_tells_what_was_asked() -> None:
    header = Header.of("nano", "hi", True, frozenset({4, 2}), SamplingParams(mode="speed", stop="x"))
    assert header.special_ids == (2, 4)
    assert header.params["mode"] == "speed"
    assert json.loads(json.dumps(header.params))["stop"] == ["x"]
