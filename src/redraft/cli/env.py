"""`redraft env`: what this machine offers, for a bug report."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from typing import Any

import typer

from redraft.cli import options

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "typer", "rich", "pyyaml", "transformers")


def env(as_json: options.Json = False) -> None:
    """Print versions, processor, threads and devices.

    Example: redraft env --json
    """
    facts = describe()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:{width}}  {shown}")


def describe() -> dict[str, Any]:
    """Facts about the machine as JSON values."""
    import torch

    from redraft import __version__
    from redraft.kernels import dispatch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "redraft": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "cpu instructions": torch.backends.cpu.get_cpu_capability(),
        "bfloat16 matrix products on the cpu": "native" if _native_bfloat16() else "emulated (slow)",
        "matrix products": dispatch.table(),
        "devices": ", ".join(["cpu", *gpus]),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "unset"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _native_bfloat16() -> bool:
    import torch

    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
