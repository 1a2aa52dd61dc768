"""The processes of a run and how the model lies over them (gloo on CPU, nccl on GPU).

All is a sum: gradients, counts and loads are added over the processes and never averaged, so that a batch gives the
same step however it is split. Three layouts, freely combined: whole copies of the model (`data: replicate`), every
matrix cut by rows over all processes (`data: shard`, torch's FSDP2: gathered a layer at a time for its forward and its
backward), and the routed experts cut over a group of processes (`experts`, `model.parallel`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from redraft.errors import ConfigError
from redraft.model.attention import MaskedAttention
from redraft.model.network import Experts, LLaDA2
from redraft.model.parallel import share_experts
from redraft.model.reader import materialise
from redraft.model.router import Router, routers
from redraft.training.lora import checkpoint_names
from redraft.training.pieces import Piece, copied_piece, expert_piece, sharded_piece


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """data: "replicate" keeps the model whole on every process, "shard" cuts weights, gradients and optimiser over all
    of them (FSDP2). experts: processes that the routed experts of a layer are spread over; the run's processes must be
    a multiple of it, and it must divide the number of experts. recompute: a layer keeps only its input for the backward
    pass, which runs the layer again (activation checkpointing)."""

    data: str = "replicate"
    experts: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.data not in ("replicate", "shard"):
            raise ConfigError(f'parallel.data must be "replicate" or "shard", got {self.data!r}')
        if self.experts < 1:
            raise ConfigError(f"parallel.experts must be at least 1, got {self.experts}")

    def check(self, processes: int, num_experts: int) -> None:
        """Refuses a number of processes, or of the model's experts, that the layout doesn't divide."""
        if processes % self.experts:
            raise ConfigError(f"{processes} processes are not a multiple of parallel.experts ({self.experts})")
        if self.experts > 1 and (not num_experts or num_experts % self.experts):
            raise ConfigError(f"parallel.experts must divide num_experts ({num_experts}), got {self.experts}")


class Ranks:
    """This process among the run's. Started by `torchrun`, it joins the group; alone, every sum is its own."""

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Each value summed over the processes."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def most(self, values: dict[str, float]) -> dict[str, float]:
        """Each value's largest over the processes."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: dict[str, float], operation: dist.ReduceOp.RedOpType) -> dict[str, float]:
        if self.world == 1:
            return values
        tensor = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(tensor, operation)
        return dict(zip(values, tensor.tolist(), strict=True))

    def sum_tensors(self, tensors: list[Tensor], group: dist.ProcessGroup | None = None) -> None:
        """Sums tensors of one dtype in place over the group (all processes, if None), in one message."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, group=group)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Returns once every process is here."""
        if self.world > 1:
            dist.barrier()

    def end(self) -> None:
        """Leaves the group."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


class Distributed:
    """A model laid over the run's processes, and this process's part of each of its tensors: `parts`, and of these
    `pieces`, what a checkpoint of the run holds.

    A model on the meta device is laid out there and then gets memory for this process's parts alone, which hold nothing
    of use until they are filled (`training.start`).

    The model is changed in place and is called as before, with one rule when it is cut in any way (`collective`): all
    processes run the same forwards and backwards, since each is a conversation. `lockstep` sees to it where their
    numbers differ. dtype: of the weights' copies in forward and backward when `data: shard` (routers keep their own),
    None for the weights' own; gradients are summed and kept in the weights'.
    """

    def __init__(self, model: LLaDA2, config: ParallelConfig, ranks: Ranks, dtype: torch.dtype | None = None):
        config.check(ranks.world, model.config.num_experts if model.config.num_moe_layers else 0)
        if config.experts > 1 and hasattr(model, "peft_config"):
            raise ConfigError(f"parallel.experts must be 1 for a network with adapters, got {config.experts}")
        self.model, self.config, self.ranks = model, config, ranks
        self.collective = ranks.world > 1 and (config.data == "shard" or config.experts > 1)
        self._grid: DeviceMesh | None = None
        if config.recompute:
            recompute(model)
        if self.collective:
            shape = (ranks.world // config.experts, config.experts)
            self._grid = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("data", "experts"))
            if config.experts > 1:
                share_experts(model, self._grid.get_group("experts"))
            if config.data == "shard":
                everyone = init_device_mesh(ranks.device.type, (ranks.world,))
                _shard(model, everyone, self._grid["data"] if config.experts > 1 else everyone, dtype)
        if any(parameter.is_meta for parameter in model.parameters()):
            materialise(model, ranks.device)
        self.parts = self._parts()
        held = checkpoint_names(model)
        self.pieces = {name: piece for name, piece in self.parts.items() if name in held}

    def sum_gradients(self) -> None:
        """Adds the gradients of the copies of each trained parameter; one that got none here counts as zero. (What
        FSDP cuts, it has summed already.)"""
        groups: dict[dist.ProcessGroup | None, list[Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and (piece := self.pieces[name]).copies > 1:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                groups.setdefault(piece.copy_group, []).append(parameter.grad)
        for group, gradients in groups.items():
            self.ranks.sum_tensors(gradients, group)

    def settle(self) -> None:
        """Drops gathered weights, so that a change of the pieces is a change of the model."""
        if isinstance(self.model, FSDPModule):
            self.model.reshard()

    @contextmanager
    def lockstep(self) -> Iterator[None]:
        """Inside, processes may run different numbers of forwards without gradient; who is done early joins in those
        of the others with a token of its own."""
        if not self.collective:
            yield
            return
        hook = self.model.register_forward_pre_hook(self._announce, prepend=True)
        try:
            yield
        finally:
            hook.remove()
        one = torch.zeros((1, 1), dtype=torch.int64, device=self.ranks.device)
        while self._any_forward(False):
            with torch.no_grad():
                self.model(one, one, MaskedAttention(), one)

    def _announce(self, *_: Any) -> None:
        self._any_forward(True)

    def _any_forward(self, mine: bool) -> bool:
        return self.ranks.most({"forward": mine})["forward"] > 0

    def _parts(self) -> dict[str, Piece]:
        """Of every parameter and persistent buffer."""
        out = {}
        for name, tensor in self.model.state_dict().items():
            if self._grid is not None and self.config.experts > 1 and _of_experts(name):
                out[name] = expert_piece(tensor, self._grid)
            elif isinstance(tensor, DTensor):
                out[name] = sharded_piece(tensor)
            else:
                out[name] = copied_piece(tensor, self.ranks.world, first=self.ranks.first)
        return out


def _of_experts(name: str) -> bool:
    return name.endswith((".mlp.experts.gate_up", ".mlp.experts.down"))


def _shard(model: LLaDA2, everyone: DeviceMesh, experts: DeviceMesh, dtype: torch.dtype | None) -> None:
    """FSDP2 by layer. Shared experts lie on fewer processes and routers keep their precision: groups of their own."""
    exact = MixedPrecisionPolicy(cast_forward_inputs=False)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32, cast_forward_inputs=False
    )
    for layer in model.layers:
        for module in layer.modules():
            if isinstance(module, Router) and dtype is not None:
                fully_shard(module, mesh=everyone, mp_policy=exact)
            if isinstance(module, Experts) and module.exchange is not None:
                fully_shard(module, mesh=experts, mp_policy=policy)
        fully_shard(layer, mesh=everyone, mp_policy=policy)
    fully_shard(model, mesh=everyone, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by counts over all processes: their gradients add up, they have no mean.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True)


def recompute(model: LLaDA2) -> None:
    """Each layer keeps its input only, and runs again in the backward pass. Router loads count the first run."""
    for layer in model.layers:
        layer.forward = partial(  # type: ignore[method-assign]
            checkpoint, layer.forward, use_reentrant=False, context_fn=partial(_first_run_and_again, layer)
        )


def _first_run_and_again(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _again(layer, [(router, router.observe) for router in routers(layer)])


@contextmanager
def _again(layer: nn.Module, observed: list[tuple[Router, Any]]) -> Iterator[None]:
    """Inside, a layer runs as it did the first time: whoever observed its routers sees them again."""
    with uncounted(layer):
        for router, observe in observed:
            router.observe = observe
        try:
            yield
        finally:
            for router, _ in observed:
                router.observe = None


@contextmanager
def uncounted(module: nn.Module) -> Iterator[None]:
    """Inside, forwards leave the routers' loads as they are."""
    before = [(router, router.load.clone()) for router in routers(module)]
    try:
        yield
    finally:
        for router, load in before:
            router.load.copy_(load)
