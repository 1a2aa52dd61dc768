"""Weights of 8 bits: each output has a scale for every 128 of its inputs. The CPU kernel multiplies them as integers,
with activations rounded to 8 bits in the same blocks; elsewhere they are widened first.

Shapes: O outputs, I inputs, B blocks of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 128
LARGEST = 127


@dataclass(frozen=True, slots=True)
class Int8:
    """data: int8 [..., O, I], from -127 to 127; scale: float32 [..., O, B], what 1 is worth in each block."""

    data: Tensor
    scale: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Int8:
        """The nearest weights of 8 bits: a block's largest becomes 127."""
        blocks = F.pad(weight.float(), (0, -weight.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
        scale = blocks.abs().amax(dim=-1) / LARGEST
        whole = (blocks / scale.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)).round_()
        return cls(whole.to(torch.int8).flatten(-2)[..., : weight.shape[-1]].contiguous(), scale)

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    def __getitem__(self, index: int | slice | None) -> Int8:
        """Of the first dimension."""
        return Int8(self.data[index], self.scale[index])

    def chunk(self, chunks: int, dim: int) -> list[Int8]:
        """As a tensor's; any dimension but the last."""
        return [Int8(*pair) for pair in zip(self.data.chunk(chunks, dim), self.scale.chunk(chunks, dim), strict=True)]

    def widened(self, dtype: torch.dtype) -> Tensor:
        """[..., O, I] in a dtype that torch multiplies."""
        scale = self.scale.repeat_interleave(BLOCK, dim=-1)[..., : self.data.shape[-1]]
        return (self.data * scale).to(dtype)


def plain(weight: Tensor | Int8, dtype: torch.dtype) -> Tensor:
    """What torch multiplies with activations of this dtype: the weight itself, or widened."""
    return weight.widened(dtype) if isinstance(weight, Int8) else weight
