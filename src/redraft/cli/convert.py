"""`redraft convert`: an autoregressive checkpoint in, the start of a diffusion model out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from redraft.cli import options


def convert(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder of safetensors, or a GGUF file.")],
    out: Annotated[Path, typer.Argument(help="The folder to write: a new or an empty one.")],
    block_length: Annotated[int, typer.Option("--block-length", help="Block length of the new model.")] = 32,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Of the weights; by default as they are, float32 where they were quantised."),
    ] = None,
    mask_token: Annotated[
        str | None,
        typer.Option("--mask-token", help="By default one the vocabulary keeps in reserve, else a new one, <|mask|>."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Turn a Llama, Qwen3 or Ling-2.0 checkpoint into one that redraft trains on.

    Example: redraft convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    from redraft.convert.conversion import convert as run

    done = run(source, out, block_length=block_length, dtype=dtype, mask_token=mask_token)
    if as_json:
        facts = {
            "folder": str(done.folder),
            "parameters": done.parameters,
            "vocab_size": done.config.vocab_size,
            "mask_token": done.mask.token,
            "mask_token_id": done.mask.index,
        }
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    kind = "new" if done.mask.new else "of the vocabulary"
    typer.echo(f"{done.folder}: {done.parameters:,} parameters, mask {done.mask.token} ({done.mask.index}, {kind})")
