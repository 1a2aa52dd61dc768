"""Cached decoding against full recomputation: `python -m bench.decoding --help`; how to read it is in bench/README.md.

Float32 and bfloat16, by threads and prompt length, on one random model in one process. Systems take turns, the order
rotates from round to round, and every ratio is between two runs of the same round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from bench.experiment import Experiment, Settings
from bench.machine import cpus
from bench.report import table
from redraft.model.config import ModelConfig

RESULTS = Path(__file__).parent / "results"
BLOCK = 32

# The published mini model with its widths halved, 64 experts and 12 layers: about 670 million parameters.
CONFIG = ModelConfig(
    vocab_size=32768,
    hidden_size=1024,
    intermediate_size=2560,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    moe_intermediate_size=256,
    num_experts=64,
    num_experts_per_tok=8,
    block_length=BLOCK,
    mask_token_id=32767,
    eos_token_id=None,
    pad_token_id=None,
)


def main(argv: Sequence[str] | None = None, config: ModelConfig = CONFIG) -> int:
    """Runs the benchmark. 1 when tokens or forwards differ, or a cell has no valid run; 0 otherwise."""
    started = perf_counter()
    args = parse(argv, config.block_length)
    settings = Settings(
        config=config,
        dtypes=tuple(args.dtype),
        threads=tuple(args.threads),
        prompts=tuple(args.prompts),
        new_tokens=args.new_tokens,
        per_step=args.per_step,
        repeats=args.repeats,
        forwards_per_block=args.forwards_per_block,
        full=args.full,
        patience=args.patience,
        budget_seconds=args.budget_seconds,
        seed=args.seed,
    )
    out = args.out or RESULTS / f"decoding-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(settings, out, started)
    experiment.prepare()
    print(experiment.plan_text(), flush=True)
    if args.plan:
        return 0
    try:
        experiment.run()
    except KeyboardInterrupt:
        print("\ninterrupted; what was measured is kept")
    results = experiment.write()
    print(table(results))
    print(f"written to {out}")
    return 0 if results["sound"] else 1


def parse(argv: Sequence[str] | None, block: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Times the cached decoder against full recomputation on a random model of 670M parameters.",
        epilog="example: bench/run --dtype float32 --threads 2 --prompts 64 512 --budget-seconds 300",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def whole_blocks(text: str) -> int:
        value = positive(text)
        if value % block:
            raise argparse.ArgumentTypeError(f"must be a multiple of the block length ({block}), got {value}")
        return value

    def add(name: str, **arguments: object) -> None:
        parser.add_argument(name, **arguments)  # pyright: ignore[reportArgumentType]

    several = min(2, len(cpus()))
    add("--dtype", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"], help="weights")
    add("--threads", nargs="+", type=positive, default=sorted({several, 1}, reverse=True), help="torch threads")
    add("--prompts", nargs="+", type=whole_blocks, default=[64, 512, 1024], help="prompt lengths")
    add("--new-tokens", type=whole_blocks, default=128, help="tokens generated")
    add("--per-step", type=positive, default=4, help="positions drafted a step (min_unmask)")
    add("--repeats", type=positive, default=3, help="rounds over all cells, at most")
    add("--forwards-per-block", type=positive, default=1, help="forwards timed in a sampled block")
    add("--full", action="store_true", help="no sampling: every forward of every system (hours)")
    add("--patience", type=float, default=15.0, help="uncached and diffusers are left out where a forward takes longer")
    add("--budget-seconds", type=float, default=1200.0, help="cells that don't fit are left out, and listed")
    add("--seed", type=int, default=0, help="of weights and prompts")
    add("--plan", action="store_true", help="print the plan with its estimate and stop")
    add("--out", type=Path, default=None, help="result file; default: bench/results/decoding-TIME.json")
    args = parser.parse_args(argv)
    if args.budget_seconds <= 0:
        parser.error(f"--budget-seconds must be above 0, got {args.budget_seconds}")
    if args.per_step > block:
        parser.error(f"--per-step must be at most the block length ({block}), got {args.per_step}")
    return args


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
