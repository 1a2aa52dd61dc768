"""`redraft eval elbo`: a bound on the likelihood of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from redraft.cli import options
from redraft.cli.asking import Progress
from redraft.errors import InvalidInput


def elbo(
    model: options.Model = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Rows to score, as training takes them: JSONL.")
    ] = None,
    skills: Annotated[bool, typer.Option("--skills", help="Score the right answers to held-out prompts.")] = False,
    per_skill: Annotated[int, typer.Option("--per-skill", help="With --skills: items of each skill.")] = 20,
    split: Annotated[
        Literal["seen", "test", "both"], typer.Option("--split", help="With --skills: as in `redraft eval skills`.")
    ] = "both",
    seed: Annotated[int, typer.Option("--seed", help="Draws other masks, and other items.")] = 0,
    samples: Annotated[int, typer.Option("--samples", help="Masks of each block: a multiple of 4, at least 8.")] = 8,
    exact: Annotated[bool, typer.Option("--exact", help="Take all masks; for --block-length up to 4.")] = False,
    block_length: Annotated[
        int | None, typer.Option("--block-length", help="Tokens of a block [default: the model's].", show_default=False)
    ] = None,
    bad_rows: Annotated[
        Literal["fail", "skip"], typer.Option("--bad-rows", help="Stop at rows that can't be read, or leave them out.")
    ] = "fail",
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report and of a line for each document.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Bits per byte and per token of held-out text, by the block-diffusion bound; see docs/likelihood.md.

    Example: redraft eval elbo --data held-out.jsonl --samples 16 --json
    """
    if skills == (data is not None):
        raise InvalidInput("redraft eval elbo scores either --data FILE or --skills; give one of them")
    options.set_threads(threads)
    from redraft.engine.llm import LLM
    from redraft.eval import elbo
    from redraft.model.folder import checkpoint_folder
    from redraft.training.likelihood import Estimator, estimate

    folder = checkpoint_folder(model)
    llm = LLM(folder, device=device, dtype=dtype, block_length=block_length)
    tokenizer = llm.tokenizer
    if tokenizer is None:
        raise InvalidInput(f"redraft eval elbo needs a tokenizer, and {folder} has no tokenizer.json")
    estimator = Estimator(
        block_length=llm.block_length,
        mask_id=llm.control.mask,
        eos_ids=tokenizer.eos_ids,
        samples=0 if exact else samples,
        seed=seed,
    )
    if data is None:
        texts = elbo.skill_texts(tokenizer, context=llm.context_length, seed=seed, per_skill=per_skill, split=split)
    else:
        texts = elbo.file_texts(
            data, tokenizer, context=llm.context_length, block_length=llm.block_length, bad_rows=bad_rows
        )
    with Progress("documents") as progress:
        estimates = estimate(llm.model, [text.sample for text in texts], estimator, progress.show)
    rows = elbo.summarise(texts, estimates)
    report, text = elbo.content(rows, estimator, folder.name), elbo.markdown(rows, estimator, folder.name)
    if out is not None:
        elbo.write_report(out, texts, estimates, report, text)
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else text, nl=as_json)
