"""Which forwards run, and over how many positions: pinned on a scripted network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.types import Completion, SamplingParams

B, MASK, VOCAB = 8, 31, 32


def sure(tokens: list[int], positions: list[int]) -> torch.Tensor:
    """Every position is sure of its own token, whatever stands there: one draft step, nothing to edit."""
    return torch.nn.functional.one_hot(torch.tensor(positions) % 7 + 1, VOCAB) * 50.0


def flipping(tokens: list[int], positions: list[int]) -> torch.Tensor:
    """Every position wants 1 after anything but 1, else 2: a cycle of two states for ever."""
    return torch.nn.functional.one_hot(torch.tensor([2 if token == 1 else 1 for token in tokens]), VOCAB) * 50.0


def answer(network: Any, prompt: int, tokens: int, chunk: int = 1024, **settings: Any) -> Completion:
    llm = LLM.from_model(network, control=ControlIds(MASK), block_length=B, prefill_chunk=chunk)
    found = llm.generate([3] * prompt, SamplingParams(max_tokens=tokens, **settings))[0]
    assert max(network.headed) <= B, "the head reads the active block only"
    assert found.stats.forwards == len(network.headed)
    assert found.stats.prefill_forwards == len(network.lengths) - len(network.headed)
    return found


def test_with_editing_the_converged_forward_is_the_commit(scripted: Any) -> None:
    network = scripted(sure)
    found = answer(network, prompt=0 + B, tokens=3 * B, mode="quality")
    assert network.lengths == [2 * B, B, B, B, B, B]
    assert found.token_ids == [position % 7 + 1 for position in range(B, 4 * B)]
    assert (found.stats.drafted, found.stats.edits, found.stats.tokens_per_forward) == (3 * B, 0, B / 2)


def test_without_editing_the_commit_is_fused_with_the_next_block(scripted: Any) -> None:
    network = scripted(sure)
    answer(network, prompt=1, tokens=3 * B - 1, mode="draft-only")
    assert network.lengths == [B, 2 * B, 2 * B]


def test_an_edit_threshold_of_one_spends_no_forward_on_looking(scripted: Any) -> None:
    network = scripted(sure)
    answer(network, prompt=1, tokens=3 * B - 1, edit_threshold=1)
    assert network.lengths == [B, 2 * B, 2 * B]


def test_a_long_prompt_is_read_in_chunks_of_whole_blocks(scripted: Any) -> None:
    network = scripted(sure)
    answer(network, prompt=5 * B + 3, tokens=1, chunk=2 * B + 5, mode="draft-only")
    assert network.lengths == [2 * B, 2 * B, 2 * B]
    network = scripted(sure)
    answer(network, prompt=5 * B + 3, tokens=1, chunk=1, mode="draft-only")
    assert network.lengths == [B] * 4 + [2 * B]


def test_one_position_a_step_when_the_threshold_is_above_one(scripted: Any) -> None:
    network = scripted(sure)
    answer(network, prompt=B, tokens=2 * B, threshold=1.5, min_unmask=2, edit_threshold="off")
    assert network.lengths == [2 * B, B, B, B, 2 * B, B, B, B]


@pytest.mark.parametrize(
    ("limit", "last", "lengths"),
    [
        # States 1, 2, then 1 again: the cycle is known, and the last forward read the 2.
        (16, 1, [2 * B, B, B, 2 * B, B, B]),  # ends in 1, which is still to be read
        (15, 2, [2 * B, B, B, B, B, B]),  # ends in 2, as read
        (1, 2, [2 * B, B, 2 * B, B]),
        (0, 1, [2 * B, 2 * B]),
    ],
)
def test_a_cycle_is_cut_short_and_commits_what_the_plain_loop_would(
    scripted: Any, limit: int, last: int, lengths: list[int]
) -> None:
    network = scripted(flipping)
    found = answer(network, prompt=B, tokens=2 * B, mode="speed", max_post_steps=limit)
    assert found.token_ids == [last] * 2 * B
    assert network.lengths == lengths


def test_the_last_block_is_drafted_whole_and_cut(scripted: Any) -> None:
    network = scripted(sure)
    found = answer(network, prompt=B, tokens=3, mode="draft-only")
    assert (len(found.token_ids), found.finish_reason, found.stats.drafted) == (3, "length", B)


def test_no_forward_follows_the_end(scripted: Any) -> None:
    network = scripted(sure)
    found = answer(network, prompt=B, tokens=10 * B, mode="draft-only", stop_token_ids=[4])
    assert network.lengths == [2 * B]
    assert (found.finish_reason, found.token_ids) == ("stop", [2, 3, 4])


def test_counts_of_a_prompt_of_4096_tokens(scripted: Any) -> None:
    """Chunks, the same prompt again, a second turn, and four answers: forwards and positions, as the network sees
    them."""
    network = scripted(sure, max_position_embeddings=8192)
    llm = LLM.from_model(network, control=ControlIds(MASK), block_length=32, prefill_chunk=1024)
    params = SamplingParams(mode="draft-only", max_tokens=75)

    def read(prompt: list[int], **settings: Any) -> tuple[Completion, list[int]]:
        network.lengths.clear()
        return llm.generate(prompt, params.with_(**settings))[0], network.lengths

    prompt = [at * at % 29 for at in range(4096 + 10)]
    first, lengths = read(prompt)
    assert lengths == [1024, 1024, 1024, 1024 + 32, 64, 64], "4096 / 1024 forwards, the last with the first step"
    _, lengths = read(prompt)
    assert lengths == [32, 64, 64], "all of the prompt's whole blocks are there"
    history = [*prompt, *first.token_ids, *prompt[:64]]
    second, lengths = read(history)
    known, whole = len(prompt) + len(first.token_ids), len(history) // 32 * 32
    assert lengths[0] == whole - second.stats.cached_tokens + 32
    assert second.stats.cached_tokens >= known - 2 * 32
    _, lengths = read([1, *prompt], n=4)
    assert lengths == [1024, 1024, 1024, 1024 + 32, 4 * 32 + 32, *lengths[5:]], "the prompt once, for all four"
