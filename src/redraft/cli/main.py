"""The `redraft` command: its verbs, and how errors leave it.

Bad input of any kind is one line on stderr and exit code 2, never a traceback; Ctrl-C is exit code 130. Verbs import
what they need inside their bodies, so that `redraft --help` loads neither torch nor a model.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.core import TyperGroup

from redraft.cli import options
from redraft.cli.chat import chat
from redraft.cli.convert import convert
from redraft.cli.demo import demo
from redraft.cli.env import env
from redraft.cli.eval import evaluation
from redraft.cli.generate import generate
from redraft.cli.replay import replay
from redraft.cli.rl import rl
from redraft.cli.search import tune
from redraft.cli.serve import serve
from redraft.cli.train import train
from redraft.errors import RedraftError

BAD_INPUT = 2


class InOrder(TyperGroup):
    """Lists the verbs in the order a newcomer meets them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    cls=InOrder,
    name="redraft",
    help="Language models that draft a block of tokens in parallel, then correct their own draft.",
    epilog='Example: redraft generate "Sort 5, 2 and 9."',
    rich_markup_mode=None,  # typer's own panels cost 0.2 s of imports
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.command()(replay)
app.command()(demo)
app.command()(train)
app.command()(rl)
app.command()(convert)
app.command()(tune)
app.command()(env)
app.add_typer(evaluation, name="eval")


def _print_version(wanted: bool) -> None:
    if wanted:
        from redraft import __version__

        typer.echo(f"redraft {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        return app(args=arguments, prog_name="redraft", standalone_mode=False) or 0
    except RedraftError as error:
        return _complain(str(error))
    except typer.TyperException as error:
        return _complain(error.format_message())
    except typer.Abort:
        return options.INTERRUPTED


def _complain(message: str) -> int:
    print("redraft:", " ".join(message.split()), file=sys.stderr)
    return BAD_INPUT


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the console script. Idle OpenMP threads are told to sleep, which torch reads when it loads."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no 界 gets a ? instead of an error
    sys.exit(run(arguments))
