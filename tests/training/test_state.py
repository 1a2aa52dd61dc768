"""Checkpoints: resuming, on any number of processes; and what a killed save leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.cluster import Case, in_processes, open_case, trained
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from redraft.errors import CheckpointError
from redraft.training import state
from redraft.training.parallel import ParallelConfig, Ranks
from redraft.training.piecefiles import PieceFiles, write_pieces
from redraft.training.pieces import Piece
from redraft.training.state import load_state, states
from redraft.training.step import train_step

BOTH = ParallelConfig(data="shard", experts=2)


@pytest.fixture(scope="module")
def six() -> list[dict[str, float]]:
    """Six steps without a pause."""
    return trained(Case(steps=6))


LAYOUTS = {"both": BOTH, "shard": ParallelConfig(data="shard"), "experts": ParallelConfig(experts=2)}


def train_three(folder: str) -> None:
    """In every sub-folder named by a layout, three steps more."""
    for name, parallel in LAYOUTS.items():
        for place in sorted(Path(folder).glob(f"*/{name}")):
            lines = trained(Case(steps=3, parallel=parallel), place)
            if Ranks().first:
                (place / "lines.json").write_text(json.dumps(lines))


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fresh/<layout>: three steps in two processes; begun/<layout>: three in one process, then three in two."""
    folder = tmp_path_factory.mktemp("by_two")
    first = trained(Case(steps=3), folder / "begun" / "one")
    (folder / "begun" / "lines.json").write_text(json.dumps(first))
    for name in LAYOUTS:
        (folder / "fresh" / name).mkdir(parents=True)
        shutil.copytree(folder / "begun" / "one", folder / "begun" / name)
    in_processes(2, train_three, str(folder))
    return folder


def losses(lines: list[dict[str, float]]) -> list[float]:
    """Loss and gradient norm of each step."""
    return [line[name] for line in lines for name in ("loss", "gradient_norm")]


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_a_pause_changes_nothing_bit_for_bit(tmp_path: Path, kind: str) -> None:
    whole = open_case(Case(kind=kind))
    expected = [train_step(whole)["loss"] for _ in range(6)]
    found = trained(Case(steps=3, kind=kind), tmp_path) + trained(Case(steps=3, kind=kind), tmp_path)
    assert [line["loss"] for line in found] == expected
    again = open_case(Case(kind=kind), tmp_path)
    assert again.step == 6
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_processes_go_on_as_one(name: str, by_two: Path, six: list[dict[str, float]]) -> None:
    place = by_two / "fresh" / name
    (found,) = states(place)
    assert len(list(found.glob("*.safetensors"))) == 4
    first = json.loads((place / "lines.json").read_text())
    assert losses(first + trained(Case(steps=3), place)) == pytest.approx(losses(six), rel=1e-9)


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_process_goes_on_as_two(name: str, by_two: Path, six: list[dict[str, float]]) -> None:
    first, then = (json.loads((by_two / "begun" / f).read_text()) for f in ("lines.json", f"{name}/lines.json"))
    assert losses(first + then) == pytest.approx(losses(six), rel=1e-9)


def killed_in_a_save(_rank: int, folder: str, at: int) -> None:
    """Trains on and dies before the save's file number `at` is complete."""
    written: list[Path] = []

    def write(file: Path, pieces: dict[str, Piece]) -> None:
        if len(written) == at:
            file.write_bytes(b"\x10")
            os.kill(os.getpid(), signal.SIGKILL)
        written.append(file)
        write_pieces(file, pieces)

    def write_json(file: Path, content: Any) -> None:
        file.write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)

    state.write_pieces, state.write_json = write, write_json  # type: ignore[assignment]
    trained(Case(steps=1), Path(folder))


@pytest.mark.parametrize("at", [1, 2])
def test_a_save_that_is_killed_leaves_the_last_checkpoint_good(
    tmp_path: Path, six: list[dict[str, float]], at: int
) -> None:
    first = trained(Case(steps=3), tmp_path)
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        spawn(killed_in_a_save, (str(tmp_path), at))
    assert [path.name for path in states(tmp_path)] == ["state-00000003"]
    assert losses(first + trained(Case(steps=3), tmp_path)) == losses(six)
    assert [path.name for path in states(tmp_path)] == ["state-00000003", "state-00000006"]
    assert not (tmp_path / ".writing").exists()


def test_a_save_that_fails_says_so_and_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(Case(steps=1), tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_pieces", full)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 2 could not be written: .*No space left"):
        trained(Case(steps=1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["state-00000001"]


def test_a_checkpoint_of_another_model_or_a_broken_one_is_refused(tmp_path: Path) -> None:
    trained(Case(steps=1), tmp_path)
    (path,) = states(tmp_path)
    other = open_case(Case(model=(("moe_intermediate_size", 4),)))
    with pytest.raises(CheckpointError, match=r"experts\.gate_up is \[8, 16, 16\] instead of \[8, 8, 16\]"):
        load_state(path, other.distributed, other.optimizer)
    file = path / "model-00001-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    run = open_case(Case())
    with pytest.raises(CheckpointError, match=r"cannot resume from .*not a complete safetensors file"):
        load_state(path, run.distributed, run.optimizer)


rows = st.integers(1, 12)


@given(count=rows, cuts=st.lists(rows, max_size=4), span=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_any_range_is_read_from_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, count: int, cuts: list[int], span: tuple[int, int]
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    x, scalar = torch.arange(count * 3, dtype=torch.float64).view(count, 3), torch.tensor(7.0)
    bounds = sorted({0, count, *(cut for cut in cuts if cut < count)})
    for number, (start, end) in enumerate(pairwise(bounds)):
        pieces = {"x": Piece(x[start:end], start, count)} | ({} if number else {"n": Piece(scalar, 0, 1)})
        write_pieces(folder / f"model-{number}.safetensors", pieces)
    files = PieceFiles(sorted(folder.iterdir()))
    assert files.shape("x") == (count, 3) and files.shape("n") == ()
    assert files.rows("n", 0, 1) == scalar
    first, last = sorted(min(count, end) for end in span)
    assert torch.equal(files.rows("x", first, last - first), x[first:last])
    whole = {"x": torch.zeros_like(x), "n": torch.zeros(())}  # torch's own reader agrees
    load(whole, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert torch.equal(whole["x"], x) and whole["n"] == scalar


def test_rows_that_no_file_has_are_named(tmp_path: Path) -> None:
    x = torch.zeros(6, 2)
    write_pieces(tmp_path / "a.safetensors", {"x": Piece(x[:2], 0, 6)})
    write_pieces(tmp_path / "b.safetensors", {"x": Piece(x[4:], 4, 6)})
    with pytest.raises(CheckpointError, match="rows 2 to 5 of x are in none of the checkpoint's files"):
        PieceFiles(sorted(tmp_path.iterdir())).fill({"x": Piece(x, 0, 6)})
