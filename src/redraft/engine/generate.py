"""The block loop of one sequence: forward, select, step, commit; one event a step (spec/decoding.md)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Selection, select
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.modes import policy_of
from redraft.decoding.stopping import Ending, TextStream
from redraft.engine.context import Context
from redraft.types import CanvasEvent, Choice, Completion, SamplingParams, Stats


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be answered. index: its place in the call, given back in its events."""

    prompt: tuple[int, ...]
    params: SamplingParams
    index: int = 0


@dataclass(frozen=True, slots=True)
class ControlIds:
    """mask: the id that stands for "not drafted yet", never proposed. eos: ids that end a sequence."""

    mask: int
    eos: frozenset[int] = frozenset()


def generate(
    context: Context, request: Request, block_length: int, control: ControlIds, stream: TextStream | None = None
) -> Iterator[CanvasEvent]:
    """Answers one request on an empty context; the last event carries the completion.

    The part of the prompt that doesn't fill a block joins the first generated block. The last block is drafted whole
    and then cut. stream: the incremental detokenizer, None when there is no text.
    """
    params = request.params
    policy = policy_of(params)
    seed = secrets.randbits(63) if params.seed is None else params.seed
    selection = Selection.of(params, (control.mask,), seed=seed)
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
    while True:
        run = BlockRun(policy, Canvas.blank(block, block_length, control.mask, given))
        while True:
            logits = context.forward(run.canvas.tokens)
            change = run.advance(select(logits, run.canvas, selection))
            stats.forwards += 1
            stats.drafted += len(change.drafted)
            stats.edits += len(change.edited)
            if run.done:
                break
            stats.seconds += perf_counter() - started
            yield _event(request, run.canvas, change)
            started = perf_counter()  # the consumer's time is not ours
        text = ending.push(run.canvas.tokens[tail:].tolist())
        stats.seconds += perf_counter() - started
        if not stats.seconds_to_first_block:
            stats.seconds_to_first_block = stats.seconds
        if ending.reason is not None:
            break
        yield _event(request, run.canvas, change, frozen=True, text=text)
        started = perf_counter()
        context.commit(run.canvas.tokens)
        block, tail, given = block + 1, 0, ()
    stats.generated_tokens = len(ending.token_ids)
    stats.prefill_forwards = context.prefill_forwards
    choice = Choice(ending.text, ending.token_ids, ending.reason, stats)
    completion = Completion(list(request.prompt), [choice])
    yield _event(request, run.canvas, change, frozen=True, text=text, completion=completion)


def _event(
    request: Request,
    canvas: Canvas,
    change: Change,
    *,
    frozen: bool = False,
    text: str = "",
    completion: Completion | None = None,
) -> CanvasEvent:
    return CanvasEvent(
        request=request.index,
        choice=0,
        step=canvas.step,
        block=canvas.block,
        tokens=tuple(canvas.tokens.tolist()),
        confidence=tuple(canvas.confidence.tolist()),
        masked=tuple(np.flatnonzero(canvas.masked).tolist()),
        drafted=change.drafted,
        edited=change.edited,
        deleted=change.deleted,
        inserted=change.inserted,
        prompt=tuple(np.flatnonzero(canvas.prompt).tolist()),
        frozen=frozen,
        text_delta=text,
        completion=completion,
    )
