"""A run starts and is exported by processes that each hold their own rows only, and gives what one process gives."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import tiny_config, tiny_model
from tests.training.cluster import in_processes
from tests.training.test_loop import recipe as nano

from redraft.errors import CheckpointError
from redraft.model.attention import MaskedAttention
from redraft.model.checkpoint import load_model, save_model
from redraft.model.names import stacked_slots
from redraft.model.network import LLaDA2
from redraft.training.adapter_files import load_adapter
from redraft.training.average import Mean
from redraft.training.loop import train
from redraft.training.lora import LoraConfig, add_lora, merge_lora
from redraft.training.parallel import Distributed, ParallelConfig, Ranks
from redraft.training.piecefiles import write_pieces
from redraft.training.recipe import Recipe
from redraft.training.start import Start
from redraft.training.tensors import Tensors, merged

TOKENIZER: Any = SimpleNamespace(vocab_size=32, mask_id=31, eos_ids=(30,))
LARGE_TOKENIZER: Any = SimpleNamespace(vocab_size=8192, mask_id=31, eos_ids=(30,))
LAYOUTS = (
    ParallelConfig(data="shard"),
    ParallelConfig(experts=2),
    ParallelConfig(data="shard", experts=2),
)
UNEVEN: dict[str, Any] = {"hidden_size": 18, "moe_intermediate_size": 9, "num_experts": 8}
SIZES = vars(tiny_config(**UNEVEN))
MODEL = {
    name: SIZES[name] for name in SIZES if name not in ("vocab_size", "mask_token_id", "eos_token_id", "pad_token_id")
}


def recipes(folder: Path) -> dict[str, Recipe]:
    """Starts of every kind: from random numbers, from both layouts of a checkpoint, with and without adapters."""
    return {
        "random": Recipe(model=MODEL, seed=5),
        "official": Recipe(start=str(folder / "official")),
        "stacked": Recipe(start=str(folder / "stacked")),
        "tied": Recipe(start=str(folder / "tied")),
        "adapters": Recipe(start=str(folder / "official"), lora=LoraConfig(rank=2, train_router=True), seed=3),
    }


def laid(recipe: Recipe, tokenizer: Any = TOKENIZER) -> Distributed:
    start = Start(recipe, tokenizer)
    distributed = Distributed(start.network(), recipe.parallel, Ranks())
    for part in distributed.parts.values():
        part.tensor.fill_(torch.nan)  # as memory that was never written may be
    start.fill(distributed)
    return distributed


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    model = tiny_model(**UNEVEN)
    save_model(model.to(torch.bfloat16), folder / "official", shard_bytes=4000)
    state = model.state_dict()
    slots = stacked_slots({name: tuple(tensor.shape) for name, tensor in state.items()})
    (folder / "stacked").mkdir()
    shutil.copy(folder / "official" / "config.json", folder / "stacked")
    stored = {name: state[slot.parameter][slot.index].contiguous() for name, slot in slots.items()}
    save_file(stored, folder / "stacked" / "model.safetensors")
    tied = tiny_model(**UNEVEN, tie_word_embeddings=True)
    save_model(tied, folder / "tied")
    tensors = load_file(folder / "tied" / "model.safetensors")
    copied = tensors["model.word_embeddings.weight"].clone()
    save_file(tensors | {"lm_head.weight": copied}, folder / "tied" / "model.safetensors")
    return folder


def write_parts(folder: str) -> None:
    """Of every start and layout, the rows of this process."""
    ranks = Ranks()
    for name, recipe in recipes(Path(folder)).items():
        for number, parallel in enumerate(LAYOUTS):
            if recipe.lora and parallel.experts > 1:
                continue
            parts = laid(replace(recipe, parallel=parallel)).parts
            rows = {f"{part.first}/{key}": part.tensor.contiguous() for key, part in parts.items() if part.count}
            save_file(rows, Path(folder) / f"{name}-{number}-{ranks.rank}.parts")


def test_each_process_starts_with_its_rows_of_what_one_process_has(checkpoints: Path) -> None:
    in_processes(2, write_parts, str(checkpoints))
    for name, recipe in recipes(checkpoints).items():
        whole = laid(recipe).model.state_dict()
        assert all(torch.isfinite(tensor).all() for tensor in whole.values())
        found = sorted(checkpoints.glob(f"{name}-*.parts"))
        assert len(found) == (2 if recipe.lora else 2 * len(LAYOUTS))
        for pair in zip(found[::2], found[1::2], strict=True):
            rows: dict[str, dict[int, torch.Tensor]] = {}
            for file in pair:
                for key, tensor in load_file(file).items():
                    first, _, parameter = key.partition("/")
                    rows.setdefault(parameter, {})[int(first)] = tensor
            assert rows.keys() == whole.keys()
            for parameter, parts in rows.items():
                joined = torch.cat([parts[first] for first in sorted(parts)])
                assert torch.equal(joined, whole[parameter]), (name, pair, parameter)


def test_one_process_starts_as_the_checkpoint_is(checkpoints: Path) -> None:
    for name in ("official", "stacked", "tied"):
        expected = load_model(checkpoints / name, dtype="float32")
        model = laid(recipes(checkpoints)[name]).model
        assert model.file_dtypes == expected.file_dtypes
        for parameter, tensor in expected.state_dict().items():
            assert torch.equal(model.state_dict()[parameter], tensor)
            assert model.state_dict()[parameter].dtype == torch.float32


def test_a_start_that_does_not_fit_is_one_error(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "tied", tmp_path / "bad")
    file = tmp_path / "bad" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"model.norm.weight": torch.ones(3), "more": torch.ones(1)}, file)
    with pytest.raises(
        CheckpointError, match=r"1 extra: more; 1 mis-shaped: model\.norm\.weight \[3\] instead of \[18\]"
    ):
        Start(Recipe(start=str(tmp_path / "bad")), TOKENIZER)


def test_adapters_start_at_nothing_and_differ_from_each_other(checkpoints: Path) -> None:
    recipe = recipes(checkpoints)["adapters"]
    model = laid(recipe).model.eval()
    plain = load_model(checkpoints / "official", dtype="float32")
    tokens, positions = torch.arange(12).unsqueeze(0), torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        found, expected = (net(tokens, positions, MaskedAttention()) for net in (model, plain))
    torch.testing.assert_close(found, expected)
    factors = [p for name, p in model.named_parameters() if ".lora_A." in name]
    spread = [float(p.detach().std()) for p in factors]
    assert len(set(spread)) == len(spread) and min(spread) > 0


@pytest.mark.parametrize("router", [False, True])
def test_merging_module_by_module_is_merging_the_network(router: bool) -> None:
    model = add_lora(tiny_model(), LoraConfig(rank=3, train_router=router))
    for parameter in model.parameters():
        parameter.data.normal_()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    bare = add_lora(tiny_model().to("meta"), LoraConfig(rank=3, train_router=router))
    found = {name: tensor.clone() for name, tensor in merged(bare, before).items()}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    expected = merge_lora(model).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_tensors_are_read_once_for_all_their_parts() -> None:
    read: list[str] = []
    tensors = Tensors(["a", "b"], lambda name: (read.append(name), torch.zeros(2))[1])
    assert list(tensors) == ["a", "b"] and len(tensors) == 2
    for name in ("a", "a", "b", "a"):
        assert tensors[name].shape == (2,)
    assert read == ["a", "b", "a"]
    with pytest.raises(KeyError):
        tensors["c"]


def finished(folder: str, *overrides: str) -> None:
    """Goes on with the runs below a folder, of which only the export is left."""
    for place in sorted(Path(folder).glob("*/")):
        extra = overrides if place.name != "adapters" else (*overrides, *adapters(Path(folder).parent))
        train(nano(place, *STEPS, *extra, "parallel.data=shard"))


STEPS = ("schedule.steps=2", "run.precision=float32", "run.save_every=1", "objective.mtf.share=0")


def adapters(folder: Path) -> tuple[str, ...]:
    return (
        f"start={folder}/one/averaged/export",
        "lora={rank: 2, alpha: 4, train_router: true}",
        "optimizer.kind=adamw",
    )


def test_processes_export_what_one_exports_byte_by_byte(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    train(nano(one / "averaged", *STEPS, "run.average=2"))
    train(nano(one / "adapters", *STEPS, "run.average=2", *adapters(tmp_path)))
    shutil.copytree(one, two, ignore=shutil.ignore_patterns("export", "adapter"))
    in_processes(2, finished, str(two), "run.average=2")
    compared = 0
    for name, parts in (("averaged", ["export"]), ("adapters", ["export", "adapter"])):
        for part in parts:
            files = sorted(path.name for path in (one / name / part).iterdir())
            assert files == sorted(path.name for path in (two / name / part).iterdir())
            for file in files:
                assert (one / name / part / file).read_bytes() == (two / name / part / file).read_bytes(), file
                compared += 1
    assert compared >= 10
    adapted = load_adapter(load_model(two / "averaged" / "export", dtype="float32"), two / "adapters" / "adapter")
    exported = load_model(two / "adapters" / "export").state_dict()
    for name, tensor in merge_lora(adapted).to(torch.bfloat16).state_dict().items():
        assert torch.equal(tensor, exported[name].to(tensor.dtype)), name


LARGE = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 256,
    "num_experts": 16,
}


@contextmanager
def growth(found: dict[str, float], name: str) -> Iterator[None]:
    """Notes by how many bytes the memory that this process itself has written (no file's pages) rose at most inside."""

    def written() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def watch() -> None:
        while not done.wait(0.001):
            found[name] = max(found[name], written() - before)

    done, before = threading.Event(), written()
    found[name] = 0.0
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
        time.sleep(0.01)
    finally:
        done.set()
        watcher.join()


def measure(folder: str, large: Recipe, from_file: Recipe) -> None:
    ranks, place, found = Ranks(), Path(folder), {}
    laid(replace(recipes(place)["random"], parallel=large.parallel))  # what comes with a first time
    for name, recipe in (("random", large), ("file", from_file)):
        with growth(found, name):
            distributed = laid(recipe, LARGE_TOKENIZER)
        write_pieces(place / name / f"model-{ranks.rank}.safetensors", distributed.pieces)
        ranks.wait()
        shapes = {key: piece.shape for key, piece in distributed.pieces.items()}
        start = Start(recipe, LARGE_TOKENIZER)
        if ranks.first:
            with growth(found, f"export of {name}"):
                mean = Mean([place / name], shapes)
                model = start.network().to(torch.bfloat16)
                save_model(model, place / f"{name}-export", state=Tensors(shapes, mean.whole), shard_bytes=2**22)
        ranks.wait()
    (place / f"growth-{ranks.rank}.json").write_text(json.dumps(found))


def test_no_process_holds_more_than_its_part_and_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # what is freed goes back at once
    fields = {name: value for name, value in vars(tiny_config(**LARGE)).items() if name in MODEL}
    model = LLaDA2(tiny_config(**LARGE))
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    largest = max(tensor.nbytes for tensor in model.state_dict().values())
    assert whole > 55e6 and largest < 9e6
    save_model(model, tmp_path / "start")
    for name in ("random", "file"):
        (tmp_path / name).mkdir()
    shard = ParallelConfig(data="shard")
    large, from_file = Recipe(model=fields, parallel=shard), Recipe(start=str(tmp_path / "start"), parallel=shard)
    in_processes(2, measure, str(tmp_path), large, from_file)
    first, second = (json.loads((tmp_path / f"growth-{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        # Drawing takes the whole tensor, and reading its own rows.
        assert 0.9 * whole / 2 < found["random"] < whole / 2 + largest + 4e6 < 0.75 * whole, found
        assert 0.9 * whole / 2 < found["file"] < whole / 2 + largest + 4e6, found
    for name in ("random", "file"):
        assert first[f"export of {name}"] < 3 * largest, first
        assert len(list((tmp_path / f"{name}-export").glob("model-*.safetensors"))) > 5
    for key, tensor in load_model(tmp_path / "file-export", dtype="float32").state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[key], rtol=0.01, atol=0)
