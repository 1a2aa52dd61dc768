"""The CPU kernel against torch and the machine: `bench/run kernels --help`; how to read it is in bench/README.md.

The parts of a forward of `bench.decoding`'s model that are matrix products, each by the fused kernel and by torch, in
turns. Every ratio is between two runs of the same round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from bench import floors, machine
from bench.decoding import CONFIG, RESULTS, positive
from bench.experiment import DTYPES
from bench.sampling import spread
from redraft.kernels.dispatch import table as dispatched
from redraft.kernels.linear import linear, swiglu
from redraft.kernels.moe import routed_experts
from redraft.model.config import ModelConfig

ARMS = ("fused", "torch")
DENSE = ("attention's projection", "head")
COPIES = 4  # of each weight, used in turn: together larger than what a processor's caches keep
TINY = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
    "mask_token_id": 127,
}


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of products, on several copies of its weights. cost: of one call."""

    name: str
    calls: Sequence[Callable[[], Tensor]]
    cost: floors.Cost


def phases(config: ModelConfig, rows: int, dtype: torch.dtype, generator: torch.Generator) -> list[Phase]:
    """Routed experts, the dense layers around them, and the head, of `rows` positions."""
    c = config

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(dtype)

    def phase(name: str, weights: Callable[[], tuple[Tensor, ...]], call: Callable[..., Tensor], cost: Any) -> Phase:
        copies = [weights() for _ in range(COPIES)]
        return Phase(name, [lambda own=own: call(*own) for own in copies], cost)

    x = random(rows, c.hidden_size) * c.hidden_size**0.5
    scores = torch.rand(rows, c.num_experts, generator=generator)
    ids = scores.argsort(dim=1)[:, : c.num_experts_per_tok].contiguous()
    share = torch.rand(ids.shape, generator=generator)
    one = 3 * c.hidden_size * c.moe_intermediate_size
    heads = (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
    size = dtype.itemsize
    return [
        phase(
            "routed experts",
            lambda: (
                random(c.num_experts, 2 * c.moe_intermediate_size, c.hidden_size),
                random(c.num_experts, c.hidden_size, c.moe_intermediate_size),
            ),
            lambda gate_up, down: routed_experts(x, ids, share, gate_up, down),
            floors.Cost(2.0 * ids.numel() * one, float(size * len(ids.unique()) * one)),
        ),
        phase(
            "shared expert",
            lambda: (
                random(c.moe_intermediate_size, c.hidden_size),
                random(c.moe_intermediate_size, c.hidden_size),
                random(c.hidden_size, c.moe_intermediate_size),
            ),
            lambda gate, up, down: swiglu(x, gate, up, down),
            floors.Cost(2.0 * rows * one, float(size * one)),
        ),
        phase(
            DENSE[0],
            lambda: (random(heads, c.hidden_size),),
            lambda weight: linear(x, weight),
            floors.Cost(2.0 * rows * heads * c.hidden_size, float(size * heads * c.hidden_size)),
        ),
        phase(
            DENSE[1],
            lambda: (random(c.vocab_size, c.hidden_size),),
            lambda weight: linear(x, weight, torch.float32),
            floors.Cost(2.0 * rows * c.vocab_size * c.hidden_size, float(size * c.vocab_size * c.hidden_size)),
        ),
    ]


def time_arm(arm: str, phase: Phase) -> dict[str, Any]:
    """Seconds a call of one arm over all copies; CPU seconds are those of all threads of this process."""
    mode = torch.inference_mode if arm == "fused" else torch.no_grad
    with machine.CpuShare() as share, mode():
        cpu, started = process_time(), perf_counter()
        for call in phase.calls:
            call()
        seconds, cpu = perf_counter() - started, process_time() - cpu
    calls = len(phase.calls)
    return {
        "arm": arm,
        "phase": phase.name,
        "seconds": seconds / calls,
        "cpu_seconds": cpu / calls,
        "cpu_taken_by_others": share.others,
        "void": share.void,
    }


def measure(args: argparse.Namespace, config: ModelConfig) -> list[dict[str, Any]]:
    """All cells: dtype, threads, rows. Rates are measured before every round; the best of them make the floor."""
    cells = []
    for dtype in args.dtype:
        for threads in args.threads:
            torch.set_num_threads(threads)
            for rows in args.rows:
                several = phases(config, rows, DTYPES[dtype], torch.Generator().manual_seed(args.seed))
                rates, runs = [], []
                for phase in several:
                    for arm in ARMS:
                        time_arm(arm, phase)
                for turn in range(args.repeats):
                    rates.append(floors.measure(DTYPES[dtype]))
                    for phase in several:
                        order = ARMS if turn % 2 == 0 else ARMS[::-1]
                        runs += [{"round": turn, **time_arm(arm, phase)} for arm in order]
                best = floors.Rates(max(r.operations for r in rates), max(r.bytes for r in rates))
                cells.append(
                    {
                        "dtype": dtype,
                        "threads": threads,
                        "rows": rows,
                        "rates": {"gflops": best.operations / 1e9, "gb_per_second": best.bytes / 1e9},
                        "summary": summary(several, runs, best),
                        "runs": runs,
                    }
                )
                print(table(cells[-1]), flush=True)
    return cells


def summary(several: Sequence[Phase], runs: Sequence[dict[str, Any]], rates: floors.Rates) -> list[dict[str, Any]]:
    """One row a phase. Void runs count in no figure of elapsed time; CPU time is given of all."""
    rows = []
    for phase in several:
        own = [run for run in runs if run["phase"] == phase.name]
        by_round = {(run["round"], run["arm"]): run for run in own}
        pairs = [(by_round[turn, "fused"], by_round[turn, "torch"]) for turn in sorted({run["round"] for run in own})]
        valid = [pair for pair in pairs if not (pair[0]["void"] or pair[1]["void"])]
        floor = rates.floor(phase.cost)
        rows.append(
            {
                "phase": phase.name,
                "floor_seconds": floor,
                "fused_seconds": spread([fused["seconds"] for fused, _ in valid]),
                "torch_over_fused": spread([other["seconds"] / fused["seconds"] for fused, other in valid]),
                "fused_over_floor": spread([fused["seconds"] / floor for fused, _ in valid]),
                "fused_cpu_seconds": spread([fused["cpu_seconds"] for fused, _ in pairs]),
                "cpu_torch_over_fused": spread([other["cpu_seconds"] / fused["cpu_seconds"] for fused, other in pairs]),
                "void": len(pairs) - len(valid),
            }
        )
    return rows


def table(cell: dict[str, Any]) -> str:
    """A cell as text: medians, and from lowest to highest."""
    head = f"{cell['dtype']}, {cell['threads']} thread(s), {cell['rows']} rows"
    rates = f"{cell['rates']['gflops']:.0f} GFLOPS, {cell['rates']['gb_per_second']:.1f} GB/s"
    lines = [f"{head} ({rates})"]
    for row in cell["summary"]:

        def shown(key: str, scale: float = 1.0, row: dict[str, Any] = row) -> str:
            value = row[key]
            if value is None:
                return "void"
            return f"{value['median'] * scale:.2f} [{value['min'] * scale:.2f}, {value['max'] * scale:.2f}]"

        lines.append(
            f"  {row['phase']:23} floor {row['floor_seconds'] * 1e3:7.2f} ms | fused {shown('fused_seconds', 1e3)} ms"
            f" | of the floor {shown('fused_over_floor')} | torch/fused {shown('torch_over_fused')}"
            f" | CPU {shown('fused_cpu_seconds', 1e3)} ms, torch/fused {shown('cpu_torch_over_fused')}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark. 1, and no file, where others used the machine so much that a ratio has no valid pair."""
    args = parse(argv)
    config = ModelConfig.from_dict(CONFIG.to_dict() | args.sizes)
    results = {
        "benchmark": "kernels",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "machine": machine.describe(),
        "dispatch": dispatched(),
        "settings": {"repeats": args.repeats, "seed": args.seed, "copies": COPIES, "config": config.to_dict()},
        "cells": measure(args, config),
    }
    if any(row["torch_over_fused"] is None for cell in results["cells"] for row in cell["summary"]):
        print("no result file: others took more than 15% of the CPUs in every round of a cell")
        return 1
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {args.out}")
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run kernels",
        description="Times a forward's matrix products by the CPU kernel and by torch, beside the machine's limits.",
        epilog="example: bench/run kernels --dtype bfloat16 --threads 1 --rows 32",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def add(name: str, **arguments: object) -> None:
        parser.add_argument(name, **arguments)  # pyright: ignore[reportArgumentType]

    add("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="of weights and activations")
    add("--threads", nargs="+", type=positive, default=[1, 2], help="torch threads")
    add("--rows", nargs="+", type=positive, default=[32, 1024], help="positions of a forward")
    add("--repeats", type=positive, default=7, help="rounds")
    add("--seed", type=int, default=0, help="of weights and routing")
    add("--tiny", action="store_true", help="little work: shows that the code runs; needs --out")
    add("--out", type=Path, default=None, help="result file; default: bench/results/kernels.json")
    args = parser.parse_args(argv)
    if args.tiny and args.out is None:
        parser.error("--tiny needs --out, so that its figures don't stand among the real ones")
    args.sizes = (
        {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "vocab_size": 128} if args.tiny else {}
    )
    if args.tiny:
        args.sizes |= {"num_experts_per_tok": 2, "mask_token_id": 127}
    args.out = args.out or RESULTS / "kernels.json"
    return args


if __name__ == "__main__":
    sys.exit(main())
