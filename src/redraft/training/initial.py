"""The first weights of a model from scratch: some heads already look at their neighbours.

A masked position carries no content of its own, so until some head has learned to look at a neighbour nothing but
token frequencies can be learned, and small batches stay on that plateau for long. Here the embeddings share one
direction, and the heads of the first layers turn it into queries and keys whose rotary phases agree at a fixed offset.
Everything is free to move from there.

Weights are made one by one, so that a process that keeps only some rows of each never holds them all.
Shapes: C hidden, D head width.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from redraft.model.config import ModelConfig
from redraft.model.network import reset_parameter
from redraft.model.rotary import frequencies

OFFSETS = (-1, 1, -2, 2, -3, 3)
FREQUENCIES = 3  # the highest ones: low ones hardly tell neighbours apart
STRENGTH = 4.0  # norm of the constant part of queries and keys, beside a random part of about 1
LOOKING = tuple(f"layers.{layer}.attention.query_key_value.weight" for layer in range(2))


def initial_weight(config: ModelConfig, name: str, shape: tuple[int, ...], *, seed: int) -> Tensor:
    """A tensor of a network from scratch, whole, in float32 on the CPU. By its name and the seed alone.

    The heads of the first two layers attend to OFFSETS, in turn.
    """
    if name.endswith(".expert_bias"):
        return torch.zeros(shape)
    weight = torch.empty(shape)
    reset_parameter(config, name, weight, generator(seed, name))
    direction_C = torch.randn(config.hidden_size, generator=generator(seed, "direction"))
    direction_C /= direction_C.norm()
    if name == "word_embeddings.weight":
        weight += direction_C * weight.std() * config.hidden_size**0.5
    elif name in LOOKING:
        _look(config, weight, direction_C)
    return weight


def generator(seed: int, name: str) -> torch.Generator:
    """Random numbers of one tensor."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))


def _look(config: ModelConfig, weight: Tensor, direction_C: Tensor) -> None:
    """Adds to queries and keys, in place, what the shared direction turns into phases that agree at the offsets."""
    component = (config.hidden_size / 2) ** 0.5  # of a normalised embedding along the direction
    used = min(FREQUENCIES, config.rotary_dim // 2)
    angle = frequencies(config, torch.float64)[:used].float()
    size = STRENGTH / component / used**0.5
    heads = weight.unflatten(0, (-1, config.head_dim))
    for head in range(config.num_attention_heads + config.num_key_value_heads):
        is_query = head < config.num_attention_heads
        phase = angle * OFFSETS[head % len(OFFSETS)] if is_query else torch.zeros(used)
        constant_D = torch.zeros(config.head_dim)
        constant_D[:used] = size * phase.cos()
        constant_D[config.rotary_dim // 2 : config.rotary_dim // 2 + used] = size * phase.sin()
        heads[head] += constant_D.unsqueeze(1) * direction_C
