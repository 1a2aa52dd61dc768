"""Data parallelism over processes (gloo on CPU, nccl on GPU): who am I, and sums over everyone."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Ranks:
    """This process among the run's. Started by `torchrun`, it joins the group; alone, every sum is its own."""

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Each value summed over the processes."""
        if self.world == 1:
            return values
        tensor = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(tensor)
        return dict(zip(values, tensor.tolist(), strict=True))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sums gradients in place, in one message; a parameter that got none here counts as zero."""
        if self.world == 1:
            return
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.sum_tensors([parameter.grad for parameter in parameters if parameter.grad is not None])

    def sum_tensors(self, tensors: list[Tensor]) -> None:
        """Sums tensors of one dtype in place, in one message."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Returns once every process is here."""
        if self.world > 1:
            dist.barrier()
