"""The arguments of the public `generate` (model file of LLaDA2.1), and what they mean here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redraft.errors import InvalidInput
from redraft.hf.masks import checked_padding
from redraft.types import OFF, SamplingParams

# The public default, which the public code accepts with every block length and never uses.
DEFAULT_STEPS = 32

_OURS = {
    "edit_threshold": "editing_threshold",
    "min_unmask": "num_to_transfer",
    "max_tokens": "gen_length",
}


def sampling_params(
    *,
    block_length: int,
    steps: int,
    minimal_topk: int,
    editing_threshold: float | str | None,
    eos_early_stop: bool,
    top_p: float | None,
    top_k: int | None,
    num_to_transfer: int,
    gen_length: int,
    **same: Any,
) -> SamplingParams:
    """Our settings from the public ones; `same` have the same name in both. Errors name the public argument.

    eos_early_stop changes nothing but time: without it the public code goes on after EOS and cuts there afterwards.
    An editing threshold of 1 or more (no probability is above it), None and "off" switch editing off.
    """
    if steps != DEFAULT_STEPS and (isinstance(steps, bool) or not isinstance(steps, int) or steps < block_length):
        raise InvalidInput(
            f"steps must be at least block_length ({block_length}), since a step drafts as many tokens as pass the "
            f"threshold, got {steps!r}; set num_to_transfer to draft more a step"
        )
    if minimal_topk != 1:
        raise InvalidInput(f"minimal_topk must be 1, got {minimal_topk!r}; set num_to_transfer to draft more a step")
    if not isinstance(eos_early_stop, bool):
        raise InvalidInput(f"eos_early_stop must be true or false, got {eos_early_stop!r}")
    if editing_threshold is None or (type(editing_threshold) in (int, float) and float(editing_threshold) >= 1):
        editing_threshold = OFF
    try:
        return SamplingParams(
            edit_threshold=editing_threshold,
            min_unmask=num_to_transfer,
            max_tokens=gen_length,
            top_p=1.0 if top_p is None else top_p,
            top_k=0 if top_k is None else top_k,
            **same,
        )
    except InvalidInput as error:
        field, space, rest = str(error).partition(" ")
        raise InvalidInput(f"{_OURS.get(field, field)}{space}{rest}") from None


def prompt_rows(inputs: Any, attention_mask: Tensor | None) -> list[list[int]]:
    """The prompts without their padding. inputs: int64 [B, L], or a BatchEncoding that holds `input_ids`."""
    if isinstance(inputs, Mapping):
        attention_mask = inputs.get("attention_mask") if attention_mask is None else attention_mask
        inputs = inputs.get("input_ids")
    if not isinstance(inputs, Tensor) or inputs.ndim != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
        got = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InvalidInput(f"inputs must be token ids of shape [batch, length] or a BatchEncoding of them, got {got}")
    if attention_mask is None:
        return inputs.tolist()
    real = checked_padding(attention_mask.to(inputs.device), inputs)
    return [row[keep].tolist() for row, keep in zip(inputs, real, strict=True)]


def padded_rows(rows: list[list[int]], pad: int, device: torch.device) -> Tensor:
    """int64 [B, longest], padded on the right."""
    longest = max(map(len, rows), default=0)
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows], dtype=torch.long, device=device)


def refuse_unknown(function: str, extra: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Arguments that would be ignored are errors, unless they have a value that asks for nothing.

    neutral: the values of known arguments that ask for nothing. An all-zero `token_type_ids`, which tokenizers add,
    asks for nothing either.
    """
    for name, value in extra.items():
        if name == "token_type_ids" and isinstance(value, Tensor) and not value.any():
            continue
        if not any(value is allowed for allowed in neutral.get(name, ())):
            raise InvalidInput(f"{function} does not take {name}={value!r}; it would have no effect on this model")
