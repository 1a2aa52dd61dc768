"""Options that several verbs share, and how their values become objects.

Every sampling option defaults to None, "not given": the defaults themselves live in `SamplingParams` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redraft.errors import InvalidInput
from redraft.types import MODES, SamplingParams

INTERRUPTED = 130  # exit code after Ctrl-C


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


Mode = Annotated[
    str | None,
    _option("--mode", help="speed, quality, draft-only, or one of `redraft tune` [default: quality]."),
]
Modes = Annotated[
    Path | None,
    _option("--modes", metavar="FILE", help="Modes of `redraft tune` [default: modes.json in the checkpoint folder]."),
]
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
LogitBias = Annotated[
    list[str] | None,
    _option("--logit-bias", metavar="ID:VALUE", help="Add to the logit of this token id; may be repeated."),
]
PresencePenalty = Annotated[
    float | None,
    _option("--presence-penalty", help="Lower the logits of tokens that finished blocks hold by this [default: 0]."),
]
FrequencyPenalty = Annotated[
    float | None, _option("--frequency-penalty", help="The same, for each time that they hold it [default: 0].")
]
StutterPenalty = Annotated[
    float | None, _option("--stutter-penalty", help="Lower the logit of the token to the left by this [default: 0].")
]
MbeBlocks = Annotated[
    int | None, _option("--mbe-blocks", help="Blocks before the open one that may still be edited [default: 0].")
]
MbeSteps = Annotated[
    int | None, _option("--mbe-steps", help="Steps at most that edit these blocks together [default: 3].")
]
MbeEditThreshold = Annotated[
    float | None, _option("--mbe-edit-threshold", help="The edit threshold of these steps [default: the other's].")
]
N = Annotated[int | None, _option("--n", help="Answers to the prompt [default: 1].")]
Logprobs = Annotated[
    int | None, _option("--logprobs", help="With --json: log-probabilities, and those of this many alternatives.")
]

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


def named_modes(model: str | None, file: Path | None) -> dict[str, dict[str, Any]]:
    """The modes of a checkpoint besides the built-in ones: of a file, or of its own (see `redraft.engine.named`)."""
    from redraft.engine.named import modes_of
    from redraft.model.folder import checkpoint_folder

    return modes_of(checkpoint_folder(model), file)


def resolved_mode(mode: str | None, model: str | None, file: Path | None) -> dict[str, Any]:
    """Fields of SamplingParams that a mode stands for: itself, when it is built in."""
    from redraft.engine.named import with_mode

    if file is not None and mode is None:
        raise InvalidInput(f"modes of {file} have no effect without --mode")
    if mode is None or (mode in MODES and file is None):
        return {} if mode is None else {"mode": mode}
    return with_mode({"mode": mode}, named_modes(model, file))


def sampling_params(**given: Any) -> SamplingParams:
    """SamplingParams of the options that were given; `edit_threshold` and `logit_bias` arrive as the texts of the
    options. `mode`: the fields of `resolved_mode`."""
    mode = given.pop("mode")
    fields = {name: value for name, value in given.items() if value is not None}
    edit = fields.get("edit_threshold")
    if edit is not None:
        fields["edit_threshold"] = _number_or_text(edit)
    if "logit_bias" in fields:
        fields["logit_bias"] = dict(map(bias, fields["logit_bias"]))
    return SamplingParams(**{**mode, **fields})


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def bias(text: str) -> tuple[int, float]:
    """Token id and value of `ID:VALUE`."""
    token, colon, value = text.partition(":")
    if colon and token.strip().isdecimal():
        number = _number_or_text(value)
        if isinstance(number, float):
            return int(token), number
    raise InvalidInput(f"logit_bias must be ID:VALUE such as 42:-5, got {text!r}")


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
