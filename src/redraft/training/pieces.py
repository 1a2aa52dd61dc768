"""A process's part of a tensor that lies over several processes: always a range of its rows (the first dimension)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Piece:
    """tensor: the rows held here, sharing memory with the model's. first: index of the first of them; rows: of the
    whole tensor (0 and 1 for a scalar). ranges: number of processes that the rows are cut over, in the order of
    `range_group` where that is one group. copies: processes that hold these same rows, `copy_group`; of them the one
    that is `owner` counts them and writes them. (Group None: all processes.)"""

    tensor: Tensor
    first: int
    rows: int
    ranges: int = 1
    copies: int = 1
    copy_group: dist.ProcessGroup | None = None
    owner: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return (self.rows, *self.tensor.shape[1:]) if self.tensor.ndim else ()

    @property
    def count(self) -> int:
        """Rows held here (1 for a scalar)."""
        return len(self.tensor) if self.tensor.ndim else 1

    def span(self, index: int) -> tuple[int, int]:
        """First and last row (exclusive) of a process's range, where the rows are cut in equal ones, as FSDP2 cuts."""
        size = -(-self.rows // self.ranges)
        return min(self.rows, index * size), min(self.rows, (index + 1) * size)


def copied_piece(tensor: Tensor, world: int, *, first: bool) -> Piece:
    """A tensor that every process holds whole."""
    return Piece(tensor, 0, tensor.shape[0] if tensor.ndim else 1, copies=world, owner=first)


def sharded_piece(tensor: DTensor) -> Piece:
    """A tensor that FSDP2 cut over all processes."""
    rows, world = tensor.shape[0], tensor.device_mesh.size()
    piece = Piece(tensor.to_local(), 0, rows, ranges=world)
    return Piece(piece.tensor, piece.span(tensor.device_mesh.get_local_rank())[0], rows, ranges=world)


def expert_piece(tensor: Tensor, grid: DeviceMesh) -> Piece:
    """Packed experts [E / experts, ...] of this process's place in the ("data", "experts") grid: whole there, or cut
    once more over "data" by FSDP2."""
    place, (data, experts) = grid.get_coordinate(), grid.shape
    if place is None:
        raise ValueError("this process is not in the grid")
    held = tensor.shape[0]
    if isinstance(tensor, DTensor):
        inner = sharded_piece(tensor)
        return Piece(inner.tensor, place[1] * held + inner.first, experts * held, ranges=data * experts)
    group = grid.get_group("data")
    return Piece(tensor, place[1] * held, experts * held, experts, data, group, owner=place[0] == 0)
