"""Which implementation computes the matrix products of a forward: one table, by device and dtype.

The CPU kernel (`redraft.kernels.cpu`) computes inference: it has no gradients. Everything else is torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redraft.kernels.cpu.library import TYPES, Library, library
from redraft.kernels.int8 import Int8

_PLAIN = (Tensor, nn.Parameter)
TORCH = "torch"


def fused(x: Tensor, *weights: object) -> Library | None:
    """The CPU kernel where it computes products of these rows and weights, else None, and torch does.

    That is in `torch.inference_mode` without autocast, for plain float32 or bfloat16 tensors on the CPU, all of one
    dtype and dense in their last dimension; weights may be of 8 bits, then all of them.
    """
    if not torch.is_inference_mode_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return None
    quantised = [weight for weight in weights if isinstance(weight, Int8)]
    if x.dtype not in TYPES or not _readable(x, x.dtype) or len(quantised) not in (0, len(weights)):
        return None
    for weight in quantised:
        if not (_readable(weight.data, torch.int8) and _readable(weight.scale, torch.float32)):
            return None
    if not quantised and not all(_readable(weight, x.dtype) for weight in weights):
        return None
    return library()


def prepare(device: torch.device, dtype: torch.dtype) -> None:
    """Builds the kernel where a forward on this device and in this dtype will want it, so that the first one needn't
    wait."""
    if device.type == "cpu" and dtype in TYPES:
        library()


def table() -> dict[str, str]:
    """What computes inference, by device and dtype, for people to read. Builds the CPU kernel if need be."""
    kernel = library()
    return {
        **{f"cpu {_name(dtype)}": f"C++ ({kernel.instructions[dtype]})" if kernel else TORCH for dtype in TYPES},
        "cpu float16, float64": TORCH,
        "gpu": TORCH,
        "training": TORCH,
    }


def _readable(tensor: object, dtype: torch.dtype) -> bool:
    return (
        isinstance(tensor, Tensor)
        and type(tensor) in _PLAIN
        and tensor.device.type == "cpu"
        and tensor.dtype == dtype
        and tensor.stride(-1) == 1
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
