"""The cost of a forward, against the parameters of a real network."""

from __future__ import annotations

import pytest
import torch

from bench.decoding import CONFIG
from bench.floors import Cost, Rates, forward_cost, measure
from redraft.model.network import LLaDA2


def test_many_positions_read_every_weight_once() -> None:
    network = LLaDA2(CONFIG, device="meta")
    matrices = sum(p.numel() for name, p in network.named_parameters() if p.ndim > 1 and "embeddings" not in name)
    cost = forward_cost(CONFIG, positions=4096, keys=0, logits=1, itemsize=4)
    assert cost.bytes == pytest.approx(4 * matrices, rel=1e-6)
    assert 600e6 < sum(p.numel() for p in network.parameters()) < 700e6


def test_one_position_uses_its_own_experts_only() -> None:
    one = forward_cost(CONFIG, positions=1, keys=0, logits=0, itemsize=1)
    assert one.operations == pytest.approx(2 * one.bytes)  # a multiplication and an addition for every weight read
    assert one.bytes < 0.2 * forward_cost(CONFIG, 4096, 0, 0, 1).bytes


def test_keys_and_logits_cost() -> None:
    plain, keys, logits = (forward_cost(CONFIG, 32, k, n, 4) for k, n in [(0, 0), (1000, 0), (0, 32)])
    assert keys.bytes - plain.bytes == 4 * 12 * 2 * 4 * 64 * 1000
    assert logits.operations - plain.operations == 2 * 32 * 32768 * 1024


def test_floor_and_estimate() -> None:
    rates = Rates(operations=10.0, bytes=5.0)
    assert rates.floor(Cost(20.0, 5.0)) == 2.0 and rates.floor(Cost(10.0, 15.0)) == 3.0
    assert rates.estimate(Cost(20.0, 5.0)) == 3.0


def test_rates_are_measured() -> None:
    rates = measure(torch.float32)
    assert 1e8 < rates.operations < 1e15 and 1e8 < rates.bytes < 1e14
