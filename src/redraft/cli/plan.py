"""`redraft train RECIPE --plan`: what a run needs on each GPU, before it starts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from redraft.errors import ConfigError

if TYPE_CHECKING:
    from redraft.training.plan import Plan
    from redraft.training.recipe import Recipe

PARTS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "update")


def show_plan(recipe: Recipe, gpus: int, gpu_memory: float, *, as_json: bool) -> None:
    """Prints the plan with activations kept and recomputed. gpu_memory: in GB."""
    from redraft.training.plan import GB, both

    if gpus < 1 or not gpu_memory > 0:
        raise ConfigError(f"--plan needs --gpus and --gpu-memory above 0, got {gpus} and {gpu_memory:g}")
    plans = both(recipe, gpus, gpu_memory * GB)
    if as_json:
        fields = [asdict(plan) | {"total": plan.total, "fits": plan.fits} for plan in plans]
        typer.echo(json.dumps({"bytes_a_gpu": fields}, indent=1))
        return
    typer.echo("\n".join(_table(plans, recipe)))


def _table(plans: list[Plan], recipe: Recipe) -> list[str]:
    from redraft.training.plan import GB, RESERVE

    kept, again = plans
    parallel = kept.parallel
    lines = [
        f"parameters      {kept.parameters / 1e9:.2f} billion, {kept.active / 1e9:.2f} billion active",
        f"layout          {kept.gpus} x {kept.gpu_memory / GB:g} GB, parallel.data={parallel.data}, "
        f"parallel.experts={parallel.experts}",
        f"a forward       {kept.positions} positions (batch.length {recipe.batch.length}, clean and noisy)",
        "",
        f"{'GB a GPU':<16}{'kept':>12}{'recomputed':>12}",
    ]
    for name in PARTS:
        lines.append(f"{name:<16}{getattr(kept, name) / GB:>12.1f}{getattr(again, name) / GB:>12.1f}")
    lines += [
        f"{'reserve':<16}{RESERVE / GB:>12.1f}{RESERVE / GB:>12.1f}",
        f"{'highest point':<16}{kept.total / GB:>12.1f}{again.total / GB:>12.1f}",
        f"{'fits':<16}{'yes' if kept.fits else 'no':>12}{'yes' if again.fits else 'no':>12}",
        "",
        f"The recipe has parallel.recompute={str(recipe.parallel.recompute).lower()}. The update comes when gathered "
        "weights, activations and logits are gone: the higher of the two counts.",
        "Not counted: fragmentation, and expert parallelism with uneven routing. Reserve: CUDA and NCCL.",
    ]
    return lines
