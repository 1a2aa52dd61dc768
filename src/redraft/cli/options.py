"""Options that several verbs share, and how their values become objects.

Every sampling option defaults to None, "not given": the defaults themselves live in `SamplingParams` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redraft.errors import InvalidInput
from redraft.types import SamplingParams

INTERRUPTED = 130  # exit code after Ctrl-C


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


Mode = Annotated[str | None, _option("--mode", help="speed, quality or draft-only [default: quality].")]
Threshold = Annotated[
    float | None,
    _option("--threshold", help="Draft a masked token when its confidence is above this [default: the mode's]."),
]
EditThreshold = Annotated[
    str | None,
    _option(
        "--edit-threshold",
        metavar="NUMBER|off",
        help="Rewrite a token when another's confidence is above this; 0: freely, off: never [default: the mode's].",
    ),
]
MaxPostSteps = Annotated[
    int | None, _option("--max-post-steps", help="Steps at most on a block that has no masks left [default: 16].")
]
MinUnmask = Annotated[int | None, _option("--min-unmask", help="Tokens drafted at least in a step [default: 1].")]
Temperature = Annotated[float | None, _option("--temperature", help="0 is greedy [default: 0].")]
TopP = Annotated[
    float | None, _option("--top-p", help="Draw from the smallest set of this much probability [default: 1].")
]
TopK = Annotated[int | None, _option("--top-k", help="Draw from this many most likely tokens; 0 is all [default: 0].")]
Seed = Annotated[int | None, _option("--seed", help="Seed of the draws [default: a new one each time].")]
MaxTokens = Annotated[int | None, _option("--max-tokens", help="Tokens generated at most [default: 256].")]
Stop = Annotated[list[str] | None, _option("--stop", help="End the text before this string; may be repeated.")]
StopTokenIds = Annotated[
    list[int] | None, _option("--stop-token-ids", help="End the text at this token id; may be repeated.")
]
IgnoreEos = Annotated[bool | None, _option("--ignore-eos", help="Go on after the end-of-text token.")]

Model = Annotated[
    str | None, _option("--model", metavar="PATH", help="Checkpoint folder [default: the model inside this package].")
]
Device = Annotated[str | None, _option("--device", help="cpu, cuda, cuda:1 [default: a GPU where there is one].")]
Dtype = Annotated[
    str | None,
    _option("--dtype", help="float32, bfloat16, float16, float64 [default: float32 on the CPU, bfloat16 elsewhere]."),
]
Threads = Annotated[int | None, _option("--threads", help="CPU threads [default: torch's choice].")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def sampling_params(**given: Any) -> SamplingParams:
    """SamplingParams of the options that were given; `edit_threshold` arrives as the text of the option."""
    fields = {name: value for name, value in given.items() if value is not None}
    edit = fields.get("edit_threshold")
    if edit is not None:
        fields["edit_threshold"] = _number_or_text(edit)
    return SamplingParams(**fields)


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def positive(name: str, value: float) -> float:
    """The value, which must be a number above 0 that is not infinite."""
    if not 0 < value < float("inf"):
        raise InvalidInput(f"{name} must be a number above 0, got {value}")
    return value


def set_threads(threads: int | None) -> None:
    """Torch's CPU threads, when the option was given."""
    if threads is None:
        return
    if threads < 1:
        raise InvalidInput(f"threads must be an integer of at least 1, got {threads}")
    import torch

    torch.set_num_threads(threads)


def read_text(path: Path) -> str:
    """The UTF-8 text of a file, less one final newline."""
    return reading(str(path), lambda: path.read_bytes())


def reading(name: str, read: Callable[[], bytes]) -> str:
    """Text of what `read` returns, less one final newline; what can't be read is an InvalidInput that names it."""
    try:
        return read().decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name} is not UTF-8 text (byte {error.start})") from error
