"""The engine against simpler ways of serving: `bench/run engine --help`; how to read it is in bench/README.md.

On the random model of `bench.decoding`. The arms of a case take turns, their order rotates from round to round, and
every ratio is between two runs of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench import floors, machine
from bench.decoding import CONFIG, RESULTS, positive
from bench.engine_cases import SMALL, Bench, Case, Sizes
from bench.engine_report import agreement, summary, table
from bench.experiment import DTYPES, copy_in, random_network
from redraft.kernels import dispatch
from redraft.model.config import ModelConfig

PARTS = {
    "a": "one request, against the spine's single-sequence decoder",
    "b1": "many requests at once, against one by one",
    "b2": "requests of many lengths over a few slots, against static batches",
    "c": "time to the first block of a long prompt, against a block a forward",
    "d": "a shared system prompt, with and without the radix tree",
    "e": "what a forward costs as the context grows",
}
TINY = CONFIG.to_dict() | {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mask_token_id": 63,
}


class Experiment:
    """Runs the cases in rounds until all repeats are done or the budget is spent; writes the results after every case.

    The file holds one entry a part. A run replaces those of its own parts and leaves the others, each of which says
    what it was measured on.
    """

    def __init__(self, args: argparse.Namespace, sizes: Sizes, config: ModelConfig, out: Path, started: float) -> None:
        """started: `perf_counter()` when the budget began to run."""
        self._args, self._sizes, self._out, self._started = args, sizes, out, started
        torch.set_num_threads(args.threads)
        torch.manual_seed(args.seed)
        first = random_network(config)
        network = first if args.dtype == "float32" else copy_in(first, DTYPES[args.dtype])
        del first
        self._cases = Bench(network, sizes, args.seed).cases(args.parts)
        self._rates = floors.measure(network.dtype)
        self._runs: list[dict[str, Any]] = []
        self._skipped: list[dict[str, Any]] = []
        self._about = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "machine": machine.describe(),
            "settings": {name: value for name, value in vars(args).items() if name not in ("out", "parts")}
            | {"sizes": asdict(sizes), "config": config.to_dict()}
            | {"parameters": sum(p.numel() for p in network.parameters()), "products": dispatch.table()},
            "rates": {"gflops": self._rates.operations / 1e9, "gb_per_second": self._rates.bytes / 1e9},
        }
        self._config, self._itemsize = config, network.dtype.itemsize

    def run(self) -> None:
        """All rounds. A case that took longer the last time than is left is left out and listed under "skipped"."""
        took: dict[tuple[str, str], float] = {}
        for turn in range(self._args.repeats):
            for case in self._cases:
                key = case.part, case.name
                left = self._args.budget_seconds - (perf_counter() - self._started)
                if took.get(key, 0.0) > left:
                    self._skipped.append({"part": case.part, "case": case.name, "round": turn, "seconds_left": left})
                    continue
                started = perf_counter()
                self._round(case, turn)
                took[key] = perf_counter() - started
                self.write()

    def _round(self, case: Case, turn: int) -> None:
        names = list(case.arms)
        at = turn % len(names)
        outcomes, runs = {}, {}
        for name in names[at:] + names[:at]:
            with machine.CpuShare() as share:
                done = outcomes[name] = case.arms[name](turn)
            runs[name] = {
                "part": case.part,
                "case": case.name,
                "arm": name,
                "round": turn,
                "seconds": done.seconds,
                "tokens": sum(map(len, done.tokens)),
                "forwards": done.forwards,
                "facts": dict(done.facts),
                "cpu_taken_by_others": share.others,
                "void": share.void,
            }
            note = f" void: others took {share.others:.0%} of the CPU" if share.void and share.others else ""
            print(f"{case.part} round {turn} | {case.name} | {name:24} {done.seconds:9.4f} s{note}", flush=True)
        for name in case.compared:
            runs[name] |= agreement(outcomes[name], outcomes[names[0]], forwards=name in case.same_forwards)
        self._runs += [runs[name] for name in names]

    def write(self) -> dict[str, Any]:
        """Writes what is known so far, whole or not at all, and returns the parts of this run."""
        own = {}
        for part in self._args.parts:
            cases = [case for case in self._cases if case.part == part]
            runs = [run for run in self._runs if run["part"] == part]
            known = {
                "what": PARTS[part],
                **self._about,
                "seconds": perf_counter() - self._started,
                "skipped": [one for one in self._skipped if one["part"] == part],
                "runs": runs,
            }
            if part == "e":
                known["floors"] = [self._floor(rows, context) for rows, context in self._growth()]
            exact = self._args.dtype == "float32"
            own[part] = known | summary(cases, runs, exact=exact)
        results = {"benchmark": "engine", "parts": self._kept() | own}
        results["parts"] = dict(sorted(results["parts"].items()))
        self._out.parent.mkdir(parents=True, exist_ok=True)
        partial = self._out.with_suffix(".part")
        partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self._out)
        return own

    def _kept(self) -> dict[str, Any]:
        """The parts that the file holds from earlier runs."""
        if not self._out.exists():
            return {}
        return json.loads(self._out.read_text(encoding="utf-8"))["parts"]

    def _growth(self) -> list[tuple[int, int]]:
        return [(rows, context) for rows in (1, self._sizes.together) for context in self._sizes.contexts]

    def _floor(self, rows: int, context: int) -> dict[str, Any]:
        """Seconds that no step of `rows` sequences can go below at the measured rates. Keys and values are those of
        each sequence, weights are read once for all."""
        length = self._config.block_length
        cost = floors.forward_cost(
            self._config, rows * length, context + length, rows * length, self._itemsize, sequences=rows
        )
        return {
            "rows": rows,
            "context": context,
            "bytes": cost.bytes,
            "operations": cost.operations,
            "memory_seconds": cost.bytes / self._rates.bytes,
            "arithmetic_seconds": cost.operations / self._rates.operations,
            "floor_seconds": self._rates.floor(cost),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark. 1 when arms that claim the same work did not do it, or a ratio has no valid pair of runs or
    misses its target; 0 otherwise."""
    started = perf_counter()
    args = parse(argv)
    sizes, config = (SMALL, ModelConfig.from_dict(TINY)) if args.tiny else (Sizes(), CONFIG)
    out = args.out or RESULTS / "engine.json"
    experiment = Experiment(args, sizes, config, out, started)
    try:
        experiment.run()
    except KeyboardInterrupt:
        print("\ninterrupted; what was measured is kept")
    parts = experiment.write()
    print(table(parts))
    print(f"written to {out}")
    return 0 if all(part["sound"] and part["met"] for part in parts.values()) else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "; ".join(f"{part}: {what}" for part, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="bench/run engine",
        description=f"Times the engine on a random model of 670M parameters. Parts: {listed}.",
        epilog="example: bench/run engine --parts a c --repeats 5",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def add(name: str, **arguments: object) -> None:
        parser.add_argument(name, **arguments)  # pyright: ignore[reportArgumentType]

    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="which parts")
    add("--repeats", type=positive, default=5, help="rounds over all cases, at most")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="of weights, keys and values")
    add("--threads", type=positive, default=min(2, len(machine.cpus())), help="torch threads")
    add("--budget-seconds", type=float, default=540.0, help="cases that don't fit are left out, and listed")
    add("--seed", type=int, default=0, help="of weights, prompts and lengths")
    add("--tiny", action="store_true", help="a tiny model and little work: shows that the code runs; needs --out")
    add("--out", type=Path, default=None, help="result file; default: bench/results/engine.json")
    args = parser.parse_args(argv)
    if args.budget_seconds <= 0:
        parser.error(f"--budget-seconds must be above 0, got {args.budget_seconds}")
    if args.tiny and args.out is None:
        parser.error("--tiny needs --out, so that its figures don't stand among the real ones")
    args.parts = sorted(set(args.parts))
    return args


if __name__ == "__main__":
    sys.exit(main())
