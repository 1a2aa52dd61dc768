"""`redraft generate`: one prompt in, one answer out, seen while it is drafted and edited."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from redraft.cli import options
from redraft.cli.frames import Frame
from redraft.cli.session import Session
from redraft.cli.show import drain, show
from redraft.cli.trace import Header, TraceWriter
from redraft.cli.view import ViewState
from redraft.errors import InvalidInput


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer; standard input when it is - or piped in.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Read the prompt from this file.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands, without the chat template.")
    ] = False,
    model: options.Model = None,
    mode: options.Mode = None,
    modes: options.Modes = None,
    max_tokens: options.MaxTokens = None,
    threshold: options.Threshold = None,
    edit_threshold: options.EditThreshold = None,
    max_post_steps: options.MaxPostSteps = None,
    min_unmask: options.MinUnmask = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = None,
    logit_bias: options.LogitBias = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    stutter_penalty: options.StutterPenalty = None,
    mbe_blocks: options.MbeBlocks = None,
    mbe_steps: options.MbeSteps = None,
    mbe_edit_threshold: options.MbeEditThreshold = None,
    n: options.N = None,
    logprobs: options.Logprobs = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print what the answer cost, on standard error.")] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write each step to this file, for `redraft replay`.")
    ] = None,
) -> None:
    """Answer a prompt: live in a terminal, as plain text in a pipe.

    Example: redraft generate "Sort 5, 2 and 9." --mode speed --trace sort.jsonl
    """
    params = options.sampling_params(
        mode=options.resolved_mode(mode, model, modes),
        max_tokens=max_tokens,
        threshold=threshold,
        edit_threshold=edit_threshold,
        max_post_steps=max_post_steps,
        min_unmask=min_unmask,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        logit_bias=logit_bias,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        stutter_penalty=stutter_penalty,
        mbe_blocks=mbe_blocks,
        mbe_steps=mbe_steps,
        mbe_edit_threshold=mbe_edit_threshold,
        n=n,
        logprobs=logprobs,
    )
    if params.logprobs is not None and not as_json:
        raise InvalidInput(f"logprobs are printed with --json only, got --logprobs {params.logprobs} without it")
    if params.n > 1 and trace is not None:
        raise InvalidInput(f"a trace holds one answer, so n must be 1 with --trace, got {params.n}")
    text = prompt_text(prompt, file)
    session = Session.load(model, device, dtype, threads)
    special = session.special_ids
    ids = text if raw else session.chat_ids(text)
    if params.n > 1:
        return _several(session.answers(ids, params), as_json, stats)
    state = ViewState(prompt=text, raw=raw, special_ids=special)
    with ExitStack() as stack:
        frames = session.frames(ids, params)
        if trace is not None:
            header = Header.of(session.model, text, raw, special, params)
            frames = _traced(frames, stack.enter_context(TraceWriter(trace, header)))
        if as_json:
            reached_end = drain(frames, state)
            print(json.dumps(result(state), ensure_ascii=False))
        else:
            from rich.console import Console

            reached_end = show(frames, state, Console(highlight=False))
    if stats:
        print(state.summary(), file=sys.stderr)
    if not reached_end:
        raise typer.Exit(options.INTERRUPTED)


def prompt_text(prompt: str | None, file: Path | None) -> str:
    """The prompt, from the one place that was named: the argument, a file, or standard input."""
    if prompt is not None and file is not None:
        raise InvalidInput("give a prompt or --file, not both")
    if file is not None:
        return options.read_text(file)
    if prompt is None and sys.stdin.isatty():
        raise InvalidInput('no prompt: give one (redraft generate "Hello"), name a --file, or pipe text in')
    if prompt is None or prompt == "-":
        return options.reading("standard input", sys.stdin.buffer.read)
    if not prompt.isprintable() and any(0xD800 <= ord(char) <= 0xDFFF for char in prompt):
        raise InvalidInput("the prompt is not UTF-8 text")
    return prompt


def result(state: ViewState) -> dict[str, Any]:
    """The answer as JSON values; "abort" is the reason of one that was interrupted."""
    record: dict[str, Any] = {"text": state.text, "token_ids": state.token_ids}
    if state.finish is None:
        return record | {"finish_reason": "abort", "stats": None}
    costs = asdict(state.finish)
    logprobs = costs.pop("logprobs")
    record |= {"finish_reason": costs.pop("reason"), "stats": costs}
    return record if logprobs is None else record | {"logprobs": logprobs}


def _several(answers: list[ViewState], as_json: bool, stats: bool) -> None:
    """Prints finished answers, one after the other, with an empty line between them."""
    if as_json:
        print(json.dumps({"choices": [result(answer) for answer in answers]}, ensure_ascii=False))
    else:
        print("\n\n".join(answer.text.removesuffix("\n") for answer in answers))
    if stats:
        print("\n".join(answer.summary() for answer in answers), file=sys.stderr)


def _traced(frames: Iterator[Frame], writer: TraceWriter) -> Iterator[Frame]:
    for frame in frames:
        writer.write(frame)
        yield frame
