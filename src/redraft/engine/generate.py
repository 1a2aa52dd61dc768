"""The block loop of one sequence: forward, select, step, commit; one event a step (spec/decoding.md)."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Ask, Selection
from redraft.decoding.canvas import Canvas
from redraft.decoding.modes import policy_of
from redraft.decoding.selection import select
from redraft.decoding.stopping import Ending, TextStream
from redraft.engine.context import Context
from redraft.engine.events import canvas_event
from redraft.engine.request import Request
from redraft.types import CanvasEvent, Choice, Completion, Stats, TokenLogprob


@dataclass(frozen=True, slots=True)
class ControlIds:
    """mask: the id that stands for "not drafted yet", never proposed. eos: ids that end a sequence."""

    mask: int
    eos: frozenset[int] = frozenset()


def generate(
    context: Context,
    request: Request,
    block_length: int,
    control: ControlIds,
    stream: TextStream | None = None,
    choice: int = 0,
) -> Iterator[CanvasEvent]:
    """Answers one request on an empty context by its answer number `choice`; the last event carries the completion.

    The part of the prompt that doesn't fill a block joins the first generated block. The last block is drafted whole
    and then cut. stream: the incremental detokenizer, None when there is no text.
    """
    params = request.params
    policy = policy_of(params)
    seed = secrets.randbits(63) if params.seed is None else params.seed
    selection = Selection.of(params, (control.mask,), seed=seed, choice=choice)
    ending = Ending(
        max_tokens=params.max_tokens,
        end_ids=set(params.stop_token_ids) | (set() if params.ignore_eos else control.eos),
        stop=params.stop,
        stream=stream,
    )
    stats = Stats(prompt_tokens=len(request.prompt))
    started = perf_counter()
    block, tail = divmod(len(request.prompt), block_length)
    whole = block * block_length
    context.commit(np.array(request.prompt[:whole], dtype=np.int64))
    given = request.prompt[whole:]
    left = request.prompt[whole - 1] if whole else None
    counts: Counter[int] = Counter()
    logprobs: list[TokenLogprob] = []
    while True:
        run = BlockRun(policy, Canvas.blank(block, block_length, control.mask, given, logprobs=params.logprobs))
        while True:
            hidden = context.forward(run.canvas.tokens)
            ask = Ask(run.canvas, selection, policy.wanted(run.canvas), left, counts)
            wanted = hidden[torch.from_numpy(ask.wanted).to(hidden.device)]
            change = run.advance(*select(context.head, wanted, [ask]))
            stats.forwards += 1
            stats.drafted += len(change.drafted)
            stats.edits += len(change.edited)
            if run.done:
                break
            stats.seconds += perf_counter() - started
            yield canvas_event(request.id, choice, run.canvas, change)
            started = perf_counter()  # the consumer's time is not ours
        generated = run.canvas.tokens[tail:].tolist()
        text = ending.push(generated)
        logprobs += run.canvas.token_logprobs
        stats.seconds += perf_counter() - started
        if not stats.seconds_to_first_block:
            stats.seconds_to_first_block = stats.seconds
        if ending.reason is not None:
            break
        yield canvas_event(request.id, choice, run.canvas, change, frozen=True, text=text)
        started = perf_counter()
        context.commit(run.canvas.tokens)
        left = generated[-1]
        counts.update(generated)
        block, tail, given = block + 1, 0, ()
    stats.generated_tokens = len(ending.token_ids)
    stats.prefill_forwards = context.prefill_forwards
    kept = None if params.logprobs is None else logprobs[: len(ending.token_ids)]
    answer = Choice(ending.text, ending.token_ids, ending.reason, stats, kept)
    completion = Completion(list(request.prompt), [answer])
    yield canvas_event(request.id, choice, run.canvas, change, frozen=True, text=text, completion=completion)
