"""The mean of checkpoints is that of their tensors, in float32, however they lie over processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import tiny_model

from redraft.errors import CheckpointError
from redraft.training.average import average_states, best_states, note_score, score_of, to_average
from redraft.training.piecefiles import write_pieces
from redraft.training.pieces import Piece, copied_piece
from redraft.training.state import states


def pieces(tensors: dict[str, torch.Tensor]) -> dict[str, Piece]:
    return {name: copied_piece(tensor, 1, first=True) for name, tensor in tensors.items()}


def written(folder: Path, step: int, tensors: dict[str, torch.Tensor]) -> Path:
    state = folder / f"state-{step:08d}"
    state.mkdir(parents=True)
    write_pieces(state / "model-00001-of-00001.safetensors", pieces(tensors))
    (state / "run.json").write_text(f'{{"step": {step}}}')
    return state


def test_every_tensor_is_the_mean_balance_biases_included(tmp_path: Path) -> None:
    folders, models = [], [tiny_model() for _ in range(3)]
    for step, model in enumerate(models):
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.normal_()
        folders.append(written(tmp_path, step, model.state_dict()))
    target = tiny_model()
    average_states(folders, pieces(target.state_dict()))
    means = {name: sum(m.state_dict()[name].double() for m in models) / 3 for name in target.state_dict()}
    assert any(name.endswith("expert_bias") for name in means)
    for name, value in target.state_dict().items():
        torch.testing.assert_close(value.double(), torch.as_tensor(means[name]), rtol=1e-6, atol=1e-7, msg=name)


def test_the_sum_is_wider_than_bfloat16(tmp_path: Path) -> None:
    values = [1.0, 1.0078125, 1.0078125]  # neighbours; a bfloat16 sum of three would lose the last bits
    folders = [written(tmp_path, i, {"w": torch.tensor([value]).bfloat16()}) for i, value in enumerate(values)]
    target = torch.zeros(1, dtype=torch.bfloat16)
    average_states(folders, pieces({"w": target}))
    assert target.item() == torch.tensor(sum(values) / 3).bfloat16().item()


@given(cuts=st.lists(st.integers(1, 6), max_size=3, unique=True), seed=st.integers(0, 99))
def test_a_process_needs_its_own_rows_only(
    cuts: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    generator = torch.Generator().manual_seed(seed)
    whole = [torch.randn(7, 2, generator=generator) for _ in range(2)]
    folders = [written(folder, step, {"w": tensor}) for step, tensor in enumerate(whole)]
    borders = [0, *sorted(cuts), 7]
    parts = []
    for low, high in pairwise(borders):
        parts.append(torch.zeros(high - low, 2))
        average_states(folders, {"w": Piece(parts[-1], low, 7, ranges=len(borders) - 1)})
    torch.testing.assert_close(torch.cat(parts), (whole[0] + whole[1]) / 2)


def test_a_checkpoint_of_another_model_is_named_and_nothing_changes(tmp_path: Path) -> None:
    ours = written(tmp_path, 1, {"a": torch.ones(2), "b": torch.ones(2)})
    for step, tensors in enumerate(({"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(3)}), 2):
        target = torch.zeros(2)
        with pytest.raises(CheckpointError, match=rf"state-0000000{step} is not of this model: it differs in b"):
            average_states([ours, written(tmp_path, step, tensors)], pieces({"a": target, "b": torch.zeros(2)}))
        assert not target.any()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        average_states([], {})


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([0.1, 0.3, 0.2], 2, [2, 3]),
        ([0.5, None, 0.5], 1, [3]),  # of equals the later
        ([None, 0.1, None], 2, [2]),
        ([None, None, None], 2, [2, 3]),
        ([-3.0, -1.0, -2.0], 1, [2]),
    ],
)
def test_the_best_are_chosen_or_the_last(
    tmp_path: Path, scores: Sequence[float | None], count: int, expected: list[int]
) -> None:
    for step, score in enumerate(scores, 1):
        state = written(tmp_path, step, {"w": torch.zeros(1)})
        if score is not None:
            note_score(state, score)
        assert score_of(state) == score
    assert sorted(states(tmp_path).index(state) + 1 for state in to_average(tmp_path, count)) == expected
    assert len(best_states(tmp_path, 9)) == sum(score is not None for score in scores)
