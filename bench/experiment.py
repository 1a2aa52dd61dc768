"""The decoding benchmark: the plan of what to run within a budget of time, and the running of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench import floors, machine
from bench.report import summary
from bench.sampling import Measured, Part, States, Task, agreement, measure, spaced_blocks
from bench.systems import System, build
from redraft.errors import ConfigError
from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OPTIONAL = ("uncached", "diffusers")
SLOW, VERY_SLOW = 1.5, 10.0  # seconds a forward
MARGIN = 1.15  # of an estimate, for norms, rotations, softmax and the interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for. per_step: positions drafted a step. full: no sampling. patience: seconds that a forward of
    our uncached decoder or of diffusers may take; where it would take longer the system is left out."""

    config: ModelConfig
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    prompts: tuple[int, ...]
    new_tokens: int
    per_step: int
    repeats: int
    forwards_per_block: int
    full: bool
    patience: float
    budget_seconds: float
    seed: int

    @property
    def mask_id(self) -> int:
        """The configuration's mask id."""
        if self.config.mask_token_id is None:
            raise ConfigError("mask_token_id is missing; the benchmark's configuration must name it")
        return self.config.mask_token_id


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the matrix. check: all systems run in full once, and their tokens and forwards are compared."""

    dtype: str
    threads: int
    prompt: int
    new_tokens: int
    check: bool = False

    def __str__(self) -> str:
        kind = f", {self.new_tokens} new tokens, every forward" if self.check else ""
        return f"{self.dtype}, {self.threads} thread{'s' * (self.threads > 1)}, prompt {self.prompt}{kind}"


class Experiment:
    """Runs cells in rounds until all repeats are done or the budget is spent; writes the results after every cell."""

    def __init__(self, settings: Settings, out: Path, started: float) -> None:
        """started: `perf_counter()` when the budget began to run."""
        self.settings = settings
        self._out = out
        self._started = started
        self._steps = -(-settings.config.block_length // settings.per_step)
        self._rates: dict[tuple[str, int], floors.Rates] = {}
        self._systems: dict[str, list[System]] = {}
        self._references: dict[tuple[str, int], States] = {}
        self._took: dict[Cell, float] = {}
        self._error: dict[str, float] = {}
        self._results: dict[str, Any] = {}

    def prepare(self) -> None:
        """Makes the networks, and measures the machine's rates for the estimates and floors."""
        s = self.settings
        torch.manual_seed(s.seed)
        longest = max(s.prompts) + s.new_tokens
        self._text = torch.randint(0, s.config.vocab_size - 1, (longest,)).tolist()
        first = random_network(s.config)
        networks = {name: first if name == "float32" else copy_in(first, DTYPES[name]) for name in s.dtypes}
        self._systems = {name: build(network, s.mask_id, s.per_step) for name, network in networks.items()}
        for dtype in s.dtypes:
            for threads in s.threads:
                torch.set_num_threads(threads)
                self._rates[dtype, threads] = floors.measure(DTYPES[dtype])
        self._results = {
            "benchmark": "decoding",
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "machine": machine.describe(),
            "settings": asdict(s) | {"parameters": sum(p.numel() for p in first.parameters())},
            "rates": [
                {"dtype": dtype, "threads": threads, "gflops": rate.operations / 1e9, "gb_per_second": rate.bytes / 1e9}
                for (dtype, threads), rate in self._rates.items()
            ],
            "forwards": s.new_tokens // s.config.block_length * self._steps,
            "floors": [
                self._floor(dtype, threads, prompt)
                for dtype in s.dtypes
                for threads in s.threads
                for prompt in s.prompts
            ],
            "runs": [],
            "skipped": [],
        }

    def cells(self, repeat: int) -> Iterator[Cell]:
        """The cells of one round in order of importance; in the first round a dtype's check comes first.

        In float32, where tokens must be equal, the check is a whole answer to the shortest prompt, and stands for that
        cell. In bfloat16, where only the number of forwards must be, it is one block after a prompt of one block.
        """
        s = self.settings
        block = s.config.block_length
        for dtype in s.dtypes:
            size = (min(s.prompts), s.new_tokens) if dtype == "float32" else (block, block)
            check = Cell(dtype, max(s.threads), *size, check=True)
            if not repeat:
                yield check
            for threads in s.threads:
                for prompt in s.prompts:
                    cell = Cell(dtype, threads, prompt, s.new_tokens)
                    if repeat or cell != replace(check, check=False):
                        yield cell

    def plan_text(self) -> str:
        """What will run, with estimated seconds."""
        s = self.settings
        lines, once = [], 0.0
        for cell in self.cells(0):
            seconds = self._estimate(cell)
            absent = {system.name for system in self._systems[cell.dtype]} - {x.name for x in self._parts(cell)}
            lines.append(f"  {seconds:7.0f} s  {cell}{' without ' + ', '.join(sorted(absent)) if absent else ''}")
            once += seconds
        again = sum(self._estimate(cell) for cell in self.cells(1))
        return "\n".join(
            [
                "estimate of the first round:",
                *lines,
                f"first round about {once:.0f} s, each of up to {s.repeats - 1} more about {again:.0f} s; "
                f"what doesn't fit in {s.budget_seconds:.0f} s is left out",
            ]
        )

    def run(self) -> None:
        """All rounds. A cell that would not end within the budget is left out and listed under "skipped"."""
        for repeat in range(self.settings.repeats):
            for cell in self.cells(repeat):
                left = self.settings.budget_seconds - (perf_counter() - self._started)
                needed = self._estimate(cell)
                if needed > left:
                    self._results["skipped"].append(
                        asdict(cell) | {"repeat": repeat, "estimated_seconds": needed, "seconds_left": left}
                    )
                    continue
                started = perf_counter()
                self._run_cell(cell, repeat)
                took = perf_counter() - started
                self._error[cell.dtype] = took / needed * self._error.get(cell.dtype, MARGIN)
                self._took[cell] = took
                self.write()

    def write(self) -> dict[str, Any]:
        """Writes what is known so far, whole or not at all, and returns it."""
        self._results["seconds"] = perf_counter() - self._started
        results = self._results | summary(self._results)
        partial = self._out.with_suffix(".part")
        partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self._out)
        return results

    def _task(self, cell: Cell) -> Task:
        length = self.settings.config.block_length
        prompt = tuple(self._text[: cell.prompt])
        return Task(prompt=prompt, blocks=cell.new_tokens // length, length=length, steps=self._steps)

    def _parts(self, cell: Cell) -> dict[System, Part]:
        """Which forwards of which system a cell runs: the slower a forward, the fewer."""
        s = self.settings
        task, rates = self._task(cell), self._rates[cell.dtype, cell.threads]
        parts: dict[System, Part] = {}
        for system in self._systems[cell.dtype]:
            if cell.check or s.full:
                parts[system] = Part()
                continue
            seconds = rates.estimate(self._cost(cell, system, task.blocks // 2, 1))
            if system.name in OPTIONAL and seconds > s.patience:
                continue
            if system.recomputes:
                count = task.blocks if seconds < SLOW else 2 if seconds < VERY_SLOW else 1
                limit = min(s.forwards_per_block, task.steps)
                parts[system] = Part(spaced_blocks(min(count, task.blocks), task.blocks), limit)
            else:
                # The first block, then the next one's first forward, which commits, and an ordinary one.
                known = task.blocks - 1, task.steps - 1
                enough = seconds > SLOW or known in self._references.get((cell.dtype, cell.prompt), {})
                early = enough and task.blocks > 1 and task.steps > 1
                parts[system] = Part(limit=task.steps + 2 if early else None)
        return parts

    def _cost(self, cell: Cell, system: System, block: int, step: int) -> floors.Cost:
        """Of one step's forward."""
        config = self.settings.config
        length = config.block_length
        end = cell.prompt + (block + 1) * length
        itemsize = DTYPES[cell.dtype].itemsize
        if system.recomputes:
            # A block sees what comes before it: half of the sequence, on average. A dense mask computes all of it.
            return floors.forward_cost(config, end, end, length if system.name == "uncached" else end, itemsize)
        fresh = length if step else end if block == 0 else 2 * length
        return floors.forward_cost(config, fresh, end, length, itemsize)

    def _estimate(self, cell: Cell) -> float:
        """Seconds that a cell will take: what it took the last time, else from the machine's rates, corrected by what
        they were wrong by in the last cell of that dtype."""
        if cell in self._took:
            return self._took[cell]
        task, rates = self._task(cell), self._rates[cell.dtype, cell.threads]
        total = 0.0
        for system, part in self._parts(cell).items():
            if part.blocks is None:
                pairs = [divmod(index, task.steps) for index in range(part.limit or task.forwards)]
            else:
                pairs = [(block, step) for block in part.blocks for step in range(part.limit or task.steps)]
            total += sum(rates.estimate(self._cost(cell, system, *pair)) for pair in pairs)
        return total * self._error.get(cell.dtype, MARGIN)

    def _run_cell(self, cell: Cell, repeat: int) -> None:
        torch.set_num_threads(cell.threads)
        task = self._task(cell)
        parts = self._parts(cell)
        reference = self._references.setdefault((cell.dtype, cell.prompt), {})
        order = list(parts)
        turn = (
            repeat % len(order) if reference else 0
        )  # the first time the cached decoder goes first: it's the reference
        filler = self._text[cell.prompt :]
        warm = self._text[: task.length]
        for system in order[turn:] + order[:turn]:
            system.run(warm, task.length, 1)
            with machine.CpuShare() as share:
                measured = measure(system, task, parts[system], reference, filler)
            if not system.recomputes:
                reference.update(measured.states)
            run = self._record(cell, repeat, system, measured, share, reference)
            self._results["runs"].append(run)
            note = f" void: others took {share.others:.0%} of the CPU" if share.void and share.others else ""
            ran = f"{measured.forwards} of {task.forwards} forwards"
            print(f"{cell} | {system.name:9} {measured.total:8.2f} s ({ran}){note}", flush=True)

    def _record(
        self, cell: Cell, repeat: int, system: System, measured: Measured, share: machine.CpuShare, reference: States
    ) -> dict[str, Any]:
        task = self._task(cell)
        equal, compared = agreement(measured.states, reference)
        drafted = all(
            task.length - tokens.count(self.settings.mask_id) == min(task.length, (step + 1) * self.settings.per_step)
            for (_, step), tokens in measured.states.items()
        )
        return asdict(cell) | {
            "repeat": repeat,
            "system": system.name,
            "seconds": measured.total,
            "sampled": measured.sampled,
            "forwards": task.forwards if measured.sampled else measured.forwards,
            "forwards_measured": measured.forwards,
            "step_seconds": {str(block): list(steps) for block, steps in measured.seconds.items()},
            "steps_equal": equal,
            "steps_compared": compared,
            "drafted_as_asked": drafted,
            "cpu_taken_by_others": share.others,
            "void": share.void,
        }

    def _floor(self, dtype: str, threads: int, prompt: int) -> dict[str, Any]:
        """Seconds that no decoder can go below: of one ordinary cached forward, and of one full recomputation."""
        cell = Cell(dtype, threads, prompt, self.settings.new_tokens)
        rates, middle = self._rates[dtype, threads], self._task(cell).blocks // 2
        out: dict[str, Any] = {"dtype": dtype, "threads": threads, "prompt": prompt}
        for system in self._systems[dtype]:
            cost = self._cost(cell, system, middle, 1)
            out[system.name] = {
                "arithmetic_seconds": cost.operations / rates.operations,
                "memory_seconds": cost.bytes / rates.bytes,
                "floor_seconds": rates.floor(cost),
            }
        return out


def random_network(config: ModelConfig) -> LLaDA2:
    """A float32 network with random weights, whose logit of the mask id is 0: below the maximum, so that no decoder
    proposes that id, whether it bans it or not."""
    network = LLaDA2(config, dtype=torch.float32).eval()
    with torch.no_grad():
        network.lm_head.weight[config.mask_token_id] = 0
    return network


def copy_in(network: LLaDA2, dtype: torch.dtype) -> LLaDA2:
    """The same network in another dtype, its router in float32 as always."""
    copy = LLaDA2(network.config, device="meta", dtype=dtype).to_empty(device="cpu").eval()
    copy.load_state_dict(network.state_dict())
    return copy
