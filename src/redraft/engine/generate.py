"""The block loop of one sequence: forward, select, step, commit; one event a step (spec/decoding.md)."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Ask, Selection
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.modes import policy_of
from redraft.decoding.multiblock import Window, multiblock_of
from redraft.decoding.selection import select
from redraft.decoding.stopping import Ending, TextStream
from redraft.engine.events import canvas_event, pass_events
from redraft.engine.request import Request
from redraft.types import CanvasEvent, Choice, Completion, Stats, TokenLogprob


@dataclass(frozen=True, slots=True)
class ControlIds:
    """mask: the id that stands for "not drafted yet", never proposed. eos: ids that end a sequence."""

    mask: int
    eos: frozenset[int] = frozenset()


class Context(Protocol):
    """What a sequence has committed, and the forwards after it; see `redraft.engine.context.UncachedContext`."""

    prefill_forwards: int

    def commit(self, tokens: np.ndarray) -> None: ...

    def forward(self, tokens: np.ndarray) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


class WindowContext(Context, Protocol):
    """What multi-block editing needs besides."""

    def rewrite(self, tokens: np.ndarray) -> None: ...

    def forward_merged(self, tokens: np.ndarray) -> Tensor: ...


def generate(
    context: Context,
    request: Request,
    block_length: int,
    control: ControlIds,
    stream: TextStream | None = None,
    choice: int = 0,
) -> Iterator[CanvasEvent]:
    """Answers one request on an empty context by its answer number `choice`; the last event carries the completion.
    With multi-block editing the context must be a `WindowContext`.

    The part of the prompt that doesn't fill a block joins the first generated block. The last block is drafted whole
    and then cut. stream: the incremental detokenizer, None when there is no text.
    """
    params = request.params
    ending = Ending(
        max_tokens=params.max_tokens,
        end_ids=set(params.stop_token_ids) | (set() if params.ignore_eos else control.eos),
        stop=params.stop,
        stream=stream,
    )
    stats = Stats(prompt_tokens=len(request.prompt))
    started = perf_counter()
    for event in _events(context, request, block_length, control, ending, stats, choice):
        stats.seconds += perf_counter() - started
        if event.frozen and not stats.seconds_to_first_block:
            stats.seconds_to_first_block = stats.seconds
        yield event
        started = perf_counter()  # the consumer's time is not ours


def _events(
    context: Context,
    request: Request,
    block_length: int,
    control: ControlIds,
    ending: Ending,
    stats: Stats,
    choice: int,
) -> Iterator[CanvasEvent]:
    params, tokens = request.params, np.array(request.prompt, dtype=np.int64)
    policy, window = policy_of(params), Window(multiblock_of(params))
    seed = secrets.randbits(63) if params.seed is None else params.seed
    selection = Selection.of(params, (control.mask,), seed=seed, choice=choice)
    counts: Counter[int] = Counter()
    logprobs: list[TokenLogprob] = []

    def step(run: BlockRun, hidden: Tensor, left: np.ndarray) -> Change:
        ask = Ask(run.canvas, selection, run.policy.wanted(run.canvas), int(left[-1]) if len(left) else None, counts)
        wanted = hidden[torch.from_numpy(ask.wanted).to(hidden.device)]
        change = run.advance(*select(context.head, wanted, [ask]))
        stats.forwards += 1
        stats.drafted += len(change.drafted)
        stats.edits += len(change.edited)
        return change

    whole = len(tokens) // block_length * block_length
    tokens, given = tokens[:whole], request.prompt[whole:]
    context.commit(tokens)
    while True:
        canvas = Canvas.blank(len(tokens) // block_length, block_length, control.mask, given, logprobs=params.logprobs)
        run, given, change = BlockRun(policy, canvas), (), Change()
        while not run.done:
            change = step(run, context.forward(run.canvas.tokens), tokens)
            if not run.done or window.settings:
                yield canvas_event(request.id, choice, run.canvas, change)
        context.commit(run.canvas.tokens)
        tokens = np.concatenate((tokens, run.canvas.tokens))
        window.add(run)
        for item in window.settle(ending):
            if isinstance(item, BlockRun):
                merging = cast(WindowContext, context)
                start = len(tokens) - len(item.canvas.tokens)
                while not item.done:
                    change = step(item, merging.forward_merged(item.canvas.tokens), tokens[:start])
                    yield from pass_events(request.id, choice, window.canvases, item.canvas, change)
                merging.rewrite(item.canvas.tokens)
                tokens[start:] = item.canvas.tokens
                continue
            before = len(ending.token_ids)
            text = ending.push(item.tokens[~item.prompt].tolist())
            kept = ending.token_ids[before:]
            counts.update(kept)
            logprobs += item.token_logprobs[: len(kept)]
            stats.generated_tokens, stats.prefill_forwards = len(ending.token_ids), context.prefill_forwards
            completion = None
            if ending.reason is not None:
                own = None if params.logprobs is None else logprobs
                answer = Choice(ending.text, ending.token_ids, ending.reason, stats, own)
                completion = Completion(list(request.prompt), [answer])
            last = Change() if window.settings else change
            yield canvas_event(request.id, choice, item, last, frozen=True, text=text, completion=completion)
            if completion is not None:
                return
