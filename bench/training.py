"""Our training step against others': `bench/run training --help`; how to read it is in bench/README.md.

All trainers take the same step on the same weights in one process. They take turns, the order rotates from round to
round, and every ratio is between two steps of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench import floors, machine
from bench.decoding import RESULTS, positive
from bench.memory import peak_bytes
from bench.trainers import ARMS, Task, Trainer, build
from bench.training_report import summary, table
from bench.training_sizes import Size, document_positions, sizes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPES = ((512, 1024, 2048), (2048, 1024, 1024))  # rows, inner, columns of the products whose best rate is the peak


@dataclass(frozen=True)
class Cell:
    size: str
    dtype: str
    threads: int

    def __str__(self) -> str:
        return f"{self.size}, {self.dtype}, {self.threads} thread{'s' * (self.threads > 1)}"


class Experiment:
    """Runs cells, each in rounds, until all is done or the budget is spent; writes the results after every round."""

    def __init__(self, args: argparse.Namespace, sizes: Mapping[str, Size], out: Path) -> None:
        self._args, self._sizes, self._out = args, sizes, out
        self._started = perf_counter()
        self._results: dict[str, Any] = {
            "benchmark": "training",
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "machine": machine.describe(),
            "settings": {name: value for name, value in vars(args).items() if name != "out"},
            "sizes": {name: self._describe(sizes[name]) for name in args.size},
            "peaks": [],
            "runs": [],
            "memory": [],
            "skipped": [],
        }

    def run(self) -> None:
        """All cells. A round, or a measurement of memory, that would not end within the budget is left out and listed
        under "skipped"."""
        for cell in self._cells():
            torch.set_num_threads(cell.threads)
            self._run_cell(cell)
            if self._args.memory and cell.threads == max(self._args.threads):
                self._measure_memory(cell)

    def write(self) -> dict[str, Any]:
        """Writes what is known so far, whole or not at all, and returns it."""
        self._results["seconds"] = perf_counter() - self._started
        results = self._results | summary(self._results)
        partial = self._out.with_suffix(".part")
        partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self._out)
        return results

    def _cells(self) -> Iterator[Cell]:
        for size in self._args.size:
            for dtype in self._args.dtype:
                for threads in self._args.threads:
                    yield Cell(size, dtype, threads)

    def _run_cell(self, cell: Cell) -> None:
        """The first steps, of some of the documents, allocate all there is to and say how long a round will take."""
        size, seed = self._sizes[cell.size], self._args.seed
        task = Task(size, cell.dtype, seed, size.network(seed))
        documents = len(task.samples)
        trainers, few = [build(name, task) for name in self._args.arms], max(1, documents // 4)
        round_seconds = 0.0
        for trainer in trainers:
            started = perf_counter()
            trainer.step(few)
            round_seconds += (perf_counter() - started) * documents / few
        for repeat in range(self._args.repeats):
            if not self._fits(cell, f"round {repeat + 1}", round_seconds):
                return
            started = perf_counter()
            self._peaks(cell)
            turn = repeat % len(trainers)
            for trainer in trainers[turn:] + trainers[:turn]:
                self._results["runs"].append(self._time(cell, repeat, trainer, documents))
            round_seconds = perf_counter() - started
            self.write()

    def _time(self, cell: Cell, repeat: int, trainer: Trainer, documents: int) -> dict[str, Any]:
        with machine.CpuShare() as share:
            started = perf_counter()
            outcome = trainer.step(documents)
            seconds = perf_counter() - started
        note = f"  void: others took {share.others:.0%} of the CPU" if share.void and share.others else ""
        print(
            f"{cell} | round {repeat + 1} {trainer.name:12} {seconds:8.2f} s  loss {outcome.loss:.6f}{note}", flush=True
        )
        taken = {"cpu_taken_by_others": share.others, "void": share.void}
        return asdict(cell) | {"repeat": repeat, "arm": trainer.name, "seconds": seconds} | asdict(outcome) | taken

    def _peaks(self, cell: Cell) -> None:
        """The rate of a matrix product in both dtypes, round by round: the summary takes the best."""
        for name, dtype in DTYPES.items():
            rate = max(floors.product_rate(dtype, *shape) for shape in SHAPES)
            self._results["peaks"].append({"dtype": name, "threads": cell.threads, "gflops": rate / 1e9})

    def _measure_memory(self, cell: Cell) -> None:
        for arm in ("redraft", "public"):
            own = [run["seconds"] for run in self._results["runs"] if run["arm"] == arm and _is_of(run, cell)]
            # Two steps, and the start of a process.
            if arm not in self._args.arms or not own or not self._fits(cell, f"memory of {arm}", 2 * max(own) + 15):
                continue
            bytes_ = peak_bytes(arm, self._sizes[cell.size], cell.dtype, cell.threads, self._args.seed)
            if bytes_:
                print(f"{cell} | memory  {arm:12} {bytes_['peak'] / 1e9:8.2f} GB at most", flush=True)
                self._results["memory"].append(asdict(cell) | {"arm": arm} | bytes_)
            self.write()

    def _fits(self, cell: Cell, what: str, seconds: float) -> bool:
        left = self._args.budget_seconds - (perf_counter() - self._started)
        if seconds > left:
            skipped = {"what": what, "estimated_seconds": seconds, "seconds_left": left}
            self._results["skipped"].append(asdict(cell) | skipped)
            print(f"{cell} | left out: {what}, about {seconds:.0f} s; {left:.0f} s are left", flush=True)
        return seconds <= left

    def _describe(self, size: Size) -> dict[str, Any]:
        config, samples = size.config, size.samples(self._args.seed)
        layers, head = (floors.forward_cost(config, 1, 0, logits, 1).operations / 2 for logits in (0, 1))
        return {
            "model": size.model,
            "objective": asdict(size.objective),
            "parameters": _parameters(size),
            "active_layer_parameters": round(layers),
            "head_parameters": round(head - layers),
            "documents": len(samples),
            "document_tokens": document_positions(samples),
            "supervised_tokens": sum(int(sample.supervised.sum()) for sample in samples),
        }


def main(argv: Sequence[str] | None = None, known: Mapping[str, Size] | None = None) -> int:
    """Runs the benchmark. 1 when losses differ that must not, or a row has no valid ratio; 0 otherwise."""
    known = sizes() if known is None else known
    args = parse(argv, known)
    out = args.out or RESULTS / f"training-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(args, known, out)
    try:
        experiment.run()
    except KeyboardInterrupt:
        print("\ninterrupted; what was measured is kept")
    results = experiment.write()
    print(table(results))
    print(f"written to {out}")
    return 0 if results["sound"] else 1


def parse(argv: Sequence[str] | None, known: Mapping[str, Size]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run training",
        description="Times a training step of the package against a public kind of trainer, against the objective of "
        "diffusers' script, and against its own step with drafts of the model; measures peak memory.",
        epilog="example: bench/run training --size 100m --threads 1 2 --arms redraft public --repeats 5",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def add(name: str, **arguments: Any) -> None:
        parser.add_argument(name, **arguments)

    native = machine.multiplies_bfloat16()
    dtypes = ["float32", "bfloat16"] if native else ["float32"]
    several = min(2, len(machine.cpus()))
    add("--size", nargs="+", choices=list(known), default=list(known), help="models, each with its batch")
    add("--dtype", nargs="+", choices=list(DTYPES), default=dtypes, help="of matrix products (autocast)")
    add("--threads", nargs="+", type=positive, default=[several], help="torch threads")
    add("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="trainers; redraft is always one of them")
    add("--repeats", type=positive, default=3, help="rounds of each cell, at most")
    add("--memory", action=argparse.BooleanOptionalAction, default=True, help="peak memory of redraft and public")
    add("--budget-seconds", type=float, default=690.0, help="rounds that don't fit are left out, and listed")
    add("--seed", type=int, default=0, help="of weights, documents and noise")
    add("--out", type=Path, default=None, help="result file; default: bench/results/training-TIME.json")
    args = parser.parse_args(argv)
    if args.budget_seconds <= 0:
        parser.error(f"--budget-seconds must be above 0, got {args.budget_seconds}")
    if args.seed < 0:
        parser.error(f"--seed must be at least 0, got {args.seed}")
    args.arms = [arm for arm in ARMS if arm == "redraft" or arm in args.arms]
    return args


def _parameters(size: Size) -> int:
    from redraft.model.network import LLaDA2

    return sum(p.numel() for p in LLaDA2(size.config, device="meta").parameters())


def _is_of(run: Mapping[str, Any], cell: Cell) -> bool:
    return all(run[name] == value for name, value in asdict(cell).items())


if __name__ == "__main__":
    sys.exit(main())
