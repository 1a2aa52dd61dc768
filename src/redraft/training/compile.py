"""Fused layers: what stands before and after attention, as kernels that torch.compile makes.

Norms, rotation and residuals are two fifths of a training step on a CPU and hardly any arithmetic: fused, they read and
write each activation once. Attention, routing and experts stay as they are, so that shapes that change from batch to
batch compile once."""

from __future__ import annotations

import shutil
from types import MethodType

import torch

from redraft.errors import ConfigError
from redraft.model.network import Layer, LLaDA2


def compile_layers(model: LLaDA2) -> None:
    """Compiles every layer's `before` and `after`, in place; one kernel serves all layers of a shape.

    Raises ConfigError where the model is on a CPU and no C++ compiler is found.
    """
    if model.device.type == "cpu" and compiler() is None:
        raise ConfigError("run.compile needs a C++ compiler: install g++, name one in CXX, or set run.compile=false")
    before, after = (torch.compile(part, dynamic=True) for part in (Layer.before, Layer.after))
    for layer in model.layers:
        layer.before, layer.after = MethodType(before, layer), MethodType(after, layer)  # type: ignore[method-assign]


def compiler() -> str | None:
    """The C++ compiler that torch would take, if there is one."""
    from torch._inductor import config

    names = config.cpp.cxx
    return next((path for name in names if name and (path := shutil.which(name))), None)
