"""What the engine is compared on: the arms of each part, and the work that each of them does in a round.

Every answer drafts exactly `per_step` positions a step (a threshold above 1) and never edits, so its number of forwards
follows from its length alone, and arms that claim the same work can be held to it. Prompts are random and differ from
round to round: nothing is found in a cache that a case isn't about.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import numpy as np
import torch

from bench.spine import CachedContext
from bench.systems import NEVER
from redraft.decoding.candidates import Ask, Selection
from redraft.decoding.canvas import Canvas
from redraft.decoding.selection import select
from redraft.engine.batch import Span
from redraft.engine.engine import Engine
from redraft.engine.executor import Executor
from redraft.engine.generate import ControlIds, generate
from redraft.engine.pages import page_length
from redraft.engine.request import EngineSettings, Failure, Request
from redraft.engine.storage import PageStorage
from redraft.kernels.cpu.library import library
from redraft.model.network import LLaDA2
from redraft.types import OFF, Completion, SamplingParams

WARM = 2  # steps before those that count


def _with_kernel(ours: float, torchs: float) -> float:
    """A target for our kernel, which makes single requests faster than batches, and for torch's products."""
    return ours if library() else torchs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each part does; prompts, contexts and lengths in tokens.

    per_step: positions drafted a step. single_*: part a. together_*: so many requests at once. mixed_*: requests of
    log-uniform lengths between the two, over so many slots. first_*: a prompt, and what a forward reads of it.
    shared_*: requests that begin with the same prompt. contexts, steps: of part e.
    """

    per_step: int = 4
    single_prompts: tuple[int, ...] = (64, 1024)
    single_tokens: int = 128
    together: int = 16
    together_prompt: int = 64
    together_tokens: int = 64
    mixed: int = 24
    mixed_slots: int = 8
    mixed_prompt: int = 64
    mixed_shortest: int = 16
    mixed_longest: int = 512
    mixed_per_step: int = 8
    first_prompt: int = 2048
    first_chunk: int = 1024
    shared: int = 32
    shared_prompt: int = 1024
    shared_own: int = 32
    shared_tokens: int = 32
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    steps: int = 8


SMALL = Sizes(
    single_prompts=(64,),
    single_tokens=64,
    together=4,
    mixed=6,
    mixed_slots=2,
    mixed_prompt=32,
    mixed_longest=256,
    first_prompt=256,
    first_chunk=128,
    shared=4,
    shared_prompt=128,
    contexts=(64, 128),
    steps=3,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm did in one round. seconds: what its ratio is made of. tokens: of each answer, in the order of the
    requests; forwards: denoising forwards, summed over the answers. facts: what else is worth knowing, numbers all."""

    seconds: float
    tokens: tuple[tuple[int, ...], ...] = ()
    forwards: int = 0
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """arms: in a round each runs once; the first is the one whose seconds the others are divided by. targets: what the
    median of that must reach, by arm; an arm without one is reported. compared: arms whose tokens must be as many as
    the first's; same_forwards: those that must also take as many forwards."""

    part: str
    name: str
    arms: Mapping[str, Callable[[int], Outcome]]
    targets: Mapping[str, float] = field(default_factory=dict)
    compared: tuple[str, ...] = ()
    same_forwards: tuple[str, ...] = ()


class Bench:
    """The cases on one network. seed: of prompts and lengths."""

    def __init__(self, network: LLaDA2, sizes: Sizes, seed: int) -> None:
        self.network, self.sizes, self.seed = network, sizes, seed
        mask = network.config.mask_token_id
        if mask is None:
            raise ValueError("mask_token_id is missing; the benchmark's configuration must name it")
        self.control = ControlIds(mask)
        self.block = network.config.block_length

    def cases(self, parts: Sequence[str]) -> list[Case]:
        """Those of the parts, in order."""
        makers = {
            "a": self.single,
            "b1": self.together,
            "b2": self.mixed,
            "c": self.first_block,
            "d": self.shared,
            "e": self.growth,
        }
        return [case for part in parts for case in makers[part]()]

    def single(self) -> list[Case]:
        """One request, the engine against the spine's decoder."""
        s = self.sizes
        cases = []
        for length in s.single_prompts:
            engine = self._engine(1, length + s.single_tokens)

            def ours(turn: int, engine: Engine = engine, length: int = length) -> Outcome:
                return serve(engine, [self._request(turn, 0, length, s.single_tokens)])

            def spine(turn: int, length: int = length) -> Outcome:
                return self._spine(self._request(turn, 0, length, s.single_tokens))

            arms = {"engine": ours, "spine": spine}
            cases.append(Case("a", f"prompt {length}", arms, {"spine": 1.0}, ("spine",), ("spine",)))
        return cases

    def together(self) -> list[Case]:
        """Many requests at once against one after the other."""
        s = self.sizes
        engine = self._engine(s.together, s.together * (s.together_prompt + s.together_tokens))

        def requests(turn: int) -> list[Request]:
            return [self._request(turn, i, s.together_prompt, s.together_tokens) for i in range(s.together)]

        arms = {
            "together": lambda turn: serve(engine, requests(turn)),
            "one by one": lambda turn: serve(engine, requests(turn), group=1),
        }
        others = ("one by one",)
        return [Case("b1", f"{s.together} requests", arms, {"one by one": _with_kernel(1.7, 2.8)}, others, others)]

    def mixed(self) -> list[Case]:
        """Requests of many lengths over a few slots, against batches that wait for their slowest."""
        s = self.sizes
        lengths = log_uniform(s.mixed, s.mixed_shortest, s.mixed_longest, self.seed)
        engine = self._engine(s.mixed_slots, s.mixed_slots * (s.mixed_prompt + s.mixed_longest))

        def requests(turn: int, lengths: Sequence[int]) -> list[Request]:
            return [
                self._request(turn, i, s.mixed_prompt, length, s.mixed_per_step) for i, length in enumerate(lengths)
            ]

        def static(turn: int) -> Outcome:
            """All rows of a batch go on until the longest is done, as in a batched `generate`; what is too long is
            cut."""
            slots = s.mixed_slots
            slowest = [max(lengths[i // slots * slots : (i // slots + 1) * slots]) for i in range(len(lengths))]
            done = serve(engine, requests(turn, slowest), group=slots)
            cut = tuple(tokens[:length] for tokens, length in zip(done.tokens, lengths, strict=True))
            return Outcome(done.seconds, cut, done.forwards, done.facts)

        arms = {
            "continuous": lambda turn: serve(engine, requests(turn, lengths)),
            "static": static,
            "static, short rows leave": lambda turn: serve(engine, requests(turn, lengths), group=s.mixed_slots),
        }
        name = f"{s.mixed} requests of {s.mixed_shortest} to {s.mixed_longest} tokens, {s.mixed_slots} slots"
        others = ("static", "static, short rows leave")
        return [Case("b2", name, arms, {"static": 1.4}, others, others[1:])]

    def first_block(self) -> list[Case]:
        """The first block after a long prompt, read in chunks or a block a forward."""
        s = self.sizes

        def arm(engine: Engine) -> Callable[[int], Outcome]:
            return lambda turn: serve(engine, [self._request(turn, 0, s.first_prompt, self.block)])

        length = s.first_prompt + self.block
        arms = {
            f"chunks of {s.first_chunk}": arm(self._engine(1, length, forward_tokens=s.first_chunk)),
            "a block a forward": arm(self._engine(1, length, forward_tokens=self.block)),
        }
        others = ("a block a forward",)
        return [
            Case("c", f"prompt {s.first_prompt}", arms, dict.fromkeys(others, _with_kernel(1.5, 2.0)), others, others)
        ]

    def shared(self) -> list[Case]:
        """Requests with one system prompt, with and without the radix tree."""
        s = self.sizes
        slots = min(16, s.shared)
        length = s.shared_prompt + s.shared_own + s.shared_tokens

        def requests(turn: int) -> list[Request]:
            system = self._prompt(turn, s.shared, s.shared_prompt)
            params = self._params(s.shared_tokens)
            return [Request(system + self._prompt(turn, i, s.shared_own), params, i) for i in range(s.shared)]

        def arm(engine: Engine) -> Callable[[int], Outcome]:
            return lambda turn: serve(engine, requests(turn))

        arms = {
            "radix tree": arm(self._engine(slots, slots * length, prefix_cache=True)),
            "none": arm(self._engine(slots, slots * length)),
        }
        return [Case("d", f"{s.shared} requests, {s.shared_prompt} tokens shared", arms, {}, ("none",), ("none",))]

    def growth(self) -> list[Case]:
        """A denoising step of one sequence, and of many, behind contexts of several lengths."""
        s = self.sizes
        cases = []
        for rows, scattered in ((1, False), (1, True), (s.together, True)):
            arms = {str(context): self._steps(rows, context, scattered) for context in s.contexts}
            pages = "scattered" if scattered else "consecutive"
            cases.append(Case("e", f"{rows} x context, pages {pages}", arms))
        return cases

    def _steps(self, rows: int, context: int, scattered: bool) -> Callable[[int], Outcome]:
        """The median step of `rows` sequences whose `context` positions are in the pages: forward, head, choice."""

        def run(turn: int) -> Outcome:
            storage, block = self._storage, self.block
            executor = Executor(self.network, storage, block)
            own = -(-(context + block) // storage.page_length)
            order = np.arange(storage.count)
            if scattered:
                np.random.default_rng((self.seed, turn)).shuffle(order)
            wanted = np.arange(block)
            canvas = Canvas.blank(context // block, block, self.control.mask)
            ask = Ask(canvas, Selection(banned=(self.control.mask,)), wanted)
            pages = order[: rows * own].reshape(rows, own).tolist()
            spans = [Span(canvas.tokens, context, tuple(each), wanted) for each in pages]
            seconds = []
            for _ in range(WARM + self.sizes.steps):
                started = perf_counter()
                select(executor.head, executor.forward(spans), [ask] * rows)
                seconds.append(perf_counter() - started)
            return Outcome(statistics.median(seconds[WARM:]), forwards=len(seconds))

        return run

    @cached_property
    def _storage(self) -> PageStorage:
        """For `together` sequences of the longest context; the same random keys and values in all layers."""
        config, block = self.network.config, self.block
        count = self.sizes.together * -(-(max(self.sizes.contexts) + block) // page_length(block))
        storage = PageStorage(config, count, block, device=self.network.device, dtype=self.network.dtype)
        storage.data[0].normal_(generator=torch.Generator().manual_seed(self.seed))
        storage.data[1:] = storage.data[0]
        return storage

    def _engine(self, slots: int, tokens: int, *, forward_tokens: int = 1024, prefix_cache: bool = False) -> Engine:
        """tokens: positions that all running requests together reach; a block more for each is set aside."""
        settings = EngineSettings(
            max_running=slots,
            forward_tokens=forward_tokens,
            cache_tokens=tokens + slots * 2 * self.block,
            prefix_cache=prefix_cache,
        )
        return Engine(self.network, self.control, settings)

    def _spine(self, request: Request) -> Outcome:
        started = perf_counter()
        context = CachedContext(self.network, len(request.prompt) + request.params.max_tokens + self.block, self.block)
        done = None
        for event in generate(context, request, self.block, self.control):
            done = event.completion
        return outcome(perf_counter() - started, [required(done)])

    def _params(self, tokens: int, per_step: int | None = None) -> SamplingParams:
        return SamplingParams(
            threshold=NEVER,
            edit_threshold=OFF,
            min_unmask=per_step or self.sizes.per_step,
            max_tokens=tokens,
            ignore_eos=True,
        )

    def _prompt(self, turn: int, index: int, length: int) -> tuple[int, ...]:
        """The mask is the last id and stands in no prompt."""
        draws = np.random.default_rng((self.seed, turn, index))
        return tuple(draws.integers(0, self.network.config.vocab_size - 1, length).tolist())

    def _request(self, turn: int, index: int, prompt: int, tokens: int, per_step: int | None = None) -> Request:
        return Request(self._prompt(turn, index, prompt), self._params(tokens, per_step), index)


def serve(engine: Engine, requests: Sequence[Request], group: int | None = None) -> Outcome:
    """All requests through the engine; `group` of them at a time, the next ones when all of these have ended."""
    size = group or len(requests)
    done: dict[int, Completion] = {}
    before = engine.statistics()
    started = perf_counter()
    for low in range(0, len(requests), size):
        for request in requests[low : low + size]:
            engine.submit(request)
        while engine.busy:
            for event in engine.step():
                if isinstance(event, Failure):
                    raise event.error
                if event.completion is not None:
                    done[event.request] = event.completion
    seconds = perf_counter() - started
    after = engine.statistics()
    return outcome(
        seconds,
        [done[request.id] for request in requests],
        engine_forwards=after.forwards - before.forwards,
        prefill_tokens=after.prefill_tokens - before.prefill_tokens,
        preempted=after.preempted - before.preempted,
    )


def outcome(seconds: float, completions: Sequence[Completion], **facts: float) -> Outcome:
    """What these answers took together."""
    firsts = [done.stats.seconds_to_first_block for done in completions]
    tokens = tuple(tuple(done.token_ids) for done in completions)
    return Outcome(
        seconds,
        tokens,
        sum(done.stats.forwards for done in completions),
        {
            "tokens_per_second": sum(map(len, tokens)) / seconds,
            "seconds_to_first_block": statistics.median(firsts),
            "cached_tokens": sum(done.stats.cached_tokens for done in completions),
            **facts,
        },
    )


def required(completion: Completion | None) -> Completion:
    if completion is None:
        raise RuntimeError("an answer has ended without a completion")
    return completion


def log_uniform(count: int, low: int, high: int, seed: int) -> list[int]:
    """Lengths whose logarithms are uniform between those of low and high."""
    draws = random.Random(seed)
    return [round(math.exp(draws.uniform(math.log(low), math.log(high)))) for _ in range(count)]
