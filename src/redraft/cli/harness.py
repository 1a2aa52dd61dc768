"""`redraft eval lm-eval`: EleutherAI's harness, which then knows the model `redraft`."""

from __future__ import annotations

import sys

import typer


def lm_eval(ctx: typer.Context) -> None:
    """The command of the lm-evaluation-harness, all of it, with `--model redraft`; see docs/evaluation.md.

    Example: redraft eval lm-eval run --model redraft --model_args mode=speed --tasks arithmetic_2da
    """
    from lm_eval.__main__ import cli_evaluate

    import redraft.eval.harness  # noqa: F401 - registers the model

    before = sys.argv
    sys.argv = ["redraft eval lm-eval", *ctx.args]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
