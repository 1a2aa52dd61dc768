"""All decoders of the benchmark do the same work: same tokens, same forwards."""

from __future__ import annotations

import pytest
import torch

from bench.baseline import PublicDecoder, expert_loop
from bench.experiment import copy_in, random_network
from bench.systems import build, timed
from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.config import ModelConfig
from redraft.model.network import MixtureOfExperts

PROMPT, NEW = 64, 96


@pytest.fixture
def text(tiny: ModelConfig) -> list[int]:
    return torch.randint(0, tiny.vocab_size - 1, (PROMPT,)).tolist()


@pytest.mark.parametrize("per_step", [4, 5, 32])
def test_all_systems_give_the_same_tokens_after_every_step(tiny: ModelConfig, text: list[int], per_step: int) -> None:
    network = random_network(tiny)
    runs = {system.name: system.run(text, NEW) for system in build(network, 63, per_step)}
    assert list(runs) == ["cached", "uncached", "baseline", "diffusers"]
    steps = -(-32 // per_step)
    for name, run in runs.items():
        assert len(run) == NEW // 32 * steps, name
        if name == "diffusers" and 32 % steps:
            continue  # it spreads a block evenly over its steps; the others fill `per_step` and then the rest
        assert [step.tokens for step in run] == [step.tokens for step in runs["cached"]], name
    for index, step in enumerate(runs["cached"]):
        assert step.tokens.count(63) == max(0, 32 - per_step * (index % steps + 1))
        assert step.seconds > 0


def test_bfloat16_does_the_same_forwards(tiny: ModelConfig, text: list[int]) -> None:
    network = copy_in(random_network(tiny), torch.bfloat16)
    assert network.dtype == torch.bfloat16
    assert {len(system.run(text, NEW)) for system in build(network, 63, 4)} == {24}


def test_a_run_can_stop_early_and_start_again(tiny: ModelConfig, text: list[int]) -> None:
    for system in build(random_network(tiny), 63, 4):
        whole = [step.tokens for step in system.run(text, NEW)]
        assert [step.tokens for step in system.run(text, NEW, limit=10)] == whole[:10], system.name
        assert [step.tokens for step in system.run(text + list(whole[7]), 32, limit=2)] == whole[8:10], system.name


def test_the_forward_of_the_baseline_is_the_network(tiny: ModelConfig, text: list[int]) -> None:
    network = random_network(tiny)
    tokens, positions = torch.tensor([text]), torch.arange(PROMPT)
    allowed = block_causal_mask(positions, positions, 32)
    additive = torch.zeros(PROMPT, PROMPT).masked_fill(~allowed, -torch.inf)[None, None]
    with torch.no_grad():
        expected = network.head(network(tokens, positions[None], MaskedAttention(allowed)))
    torch.testing.assert_close(PublicDecoder(network, 63).forward(tokens, additive), expected, atol=1e-5, rtol=1e-5)


def test_the_expert_loop_is_the_mixture(tiny: ModelConfig) -> None:
    mixture = random_network(tiny).layers[1].mlp
    assert isinstance(mixture, MixtureOfExperts)
    for rows in (1, 5, 70):  # fewer rows than experts: some experts have none
        x = torch.randn(1, rows, tiny.hidden_size)
        with torch.no_grad():
            torch.testing.assert_close(expert_loop(mixture, x), mixture(x), atol=1e-5, rtol=1e-5)


def test_the_network_never_proposes_the_mask(tiny: ModelConfig, text: list[int]) -> None:
    network = random_network(tiny)
    with torch.no_grad():
        logits = network.head(network(torch.tensor([text]), torch.arange(PROMPT)[None], MaskedAttention()))
    assert (logits[..., 63] == 0).all() and (logits.argmax(-1) != 63).all()


def test_copies_keep_the_router_in_float32(tiny: ModelConfig) -> None:
    network = random_network(tiny)
    copy = copy_in(network, torch.bfloat16)
    for (name, mine), (_, other) in zip(network.state_dict().items(), copy.state_dict().items(), strict=True):
        assert torch.equal(mine.to(other.dtype), other), name
        assert (other.dtype == torch.float32) == ("mlp.gate." in name), name


def test_timing_stops_after_the_limit() -> None:
    taken = []

    def states() -> object:
        for index in range(5):
            taken.append(index)
            yield (index,)

    assert [step.tokens for step in timed(states(), 2)] == [(0,), (1,)]  # pyright: ignore[reportArgumentType]
    assert taken == [0, 1]
