"""From an autoregressive checkpoint to an LLaDA2 one with the same numbers.

With block length 1 the converted network gives the next-token logits of its source; a training run with a growing
block length (LLaDA2.0 report, arXiv 2512.15745, section 3) then makes a block-diffusion model of it. Tensors are read,
fused and written shard by shard. Shapes: V vocabulary, C hidden.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from redraft.convert.architectures import EMBEDDING, HEAD, Architecture, architecture_of
from redraft.convert.mask import Mask, add_mask_token
from redraft.convert.source import Source, open_source
from redraft.errors import CheckpointError, ConfigError, InvalidInput
from redraft.model.checkpoint import resolve_dtype
from redraft.model.config import ModelConfig
from redraft.model.names import keeps_precision, official_slots
from redraft.model.network import LLaDA2
from redraft.model.storage import listing, write_json, write_shards

SHARD_BYTES = 2**30
# A width that GPU matrix products like; rows are added only where the vocabulary grows anyway.
_ROWS = 8
_DERIVED = ".rotary_emb.inv_freq"  # a buffer of old checkpoints, which the settings give


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written. parameters: numbers in all tensors."""

    folder: Path
    config: ModelConfig
    mask: Mask
    parameters: int


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    block_length: int = 32,
    dtype: str | torch.dtype | None = None,
    mask_token: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Converted:
    """Writes an autoregressive checkpoint as an LLaDA2 folder, which `load_model` and `Tokenizer.load` read.

    source: a Hugging Face folder of safetensors (Llama, Qwen3 dense, Ling-2.0) or a GGUF file (llama, qwen3).
    out: a folder that does not exist yet, or is empty; a conversion that fails leaves nothing in it.
    dtype: of the weights, the router's apart; None keeps each tensor's own, and float32 for quantised ones.
    mask_token: see `redraft.convert.mask.add_mask_token`; the row of a new token is the mean of all tokens' rows.
    Raises CheckpointError for files, ConfigError for settings that can't be carried over, InvalidInput for arguments.
    """
    wanted = None if dtype is None else resolve_dtype(dtype)
    folder = _free(Path(out))
    opened = open_source(Path(source))
    architecture = architecture_of(opened.config)
    base = replace(architecture.config(opened.config), block_length=block_length)
    eos_ids = _eos_ids(opened.config, base.vocab_size)
    pieces = _matched(opened, architecture, base, Path(source))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".converting-", dir=folder.parent) as temporary:
            aside = Path(temporary) / "out"  # unlike its parent, readable by whom the umask says
            aside.mkdir()
            opened.write_tokenizer(aside)
            mask = add_mask_token(aside, mask_token, eos_ids)
            config = _with_ids(base, opened.config, eos_ids, mask)
            parameters = _write(opened, pieces, config, mask, wanted, aside, shard_bytes)
            if folder.exists():
                folder.rmdir()
            aside.rename(folder)
    except (SafetensorError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder} could not be written: {error}") from error
    return Converted(folder, config, mask, parameters)


def _free(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"OUT must be a new or an empty folder, and {folder} is neither")
    return folder


def _matched(source: Source, architecture: Architecture, config: ModelConfig, path: Path) -> dict[str, tuple[str, ...]]:
    """Names in the source of each tensor of the network, once every tensor is known to fit."""
    network = LLaDA2(config, device="meta").state_dict()
    slots = official_slots({name: tuple(tensor.shape) for name, tensor in network.items()})
    pieces = {name: architecture.source(name) for name in slots}
    used = {part for parts in pieces.values() for part in parts}
    missing = sorted(used - source.tensors.keys())
    extra = [name for name in source.tensors if name not in used and not name.endswith(_DERIVED)]
    if config.tie_word_embeddings and HEAD in extra:
        extra.remove(HEAD)
        if not torch.equal(source.read(HEAD), source.read(pieces[EMBEDDING][0])):
            raise CheckpointError(f"{path}: tie_word_embeddings is true, but {HEAD} differs from the embedding")
    kinds = {"missing": missing, "without a counterpart": extra}
    if not missing:
        kinds["mis-shaped"] = [
            f"{', '.join(parts)} {' + '.join(str(list(source.tensors[part].shape)) for part in parts)} "
            f"instead of {list(slots[name].shape)}"
            for name, parts in pieces.items()
            if _joined(source, parts) != slots[name].shape
        ]
    problems = "; ".join(f"{len(names)} {kind}: {listing(names)}" for kind, names in kinds.items() if names)
    if problems:
        raise CheckpointError(f"{path}: the tensors do not match the settings: {problems}")
    return pieces


def _joined(source: Source, parts: tuple[str, ...]) -> tuple[int, ...]:
    """The shape of tensors stacked by rows; () where they can't be."""
    shapes = [source.tensors[part].shape for part in parts]
    if len({shape[1:] for shape in shapes}) > 1 or not all(shapes):
        return ()
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _eos_ids(raw: Mapping[str, Any], vocab_size: int) -> list[int]:
    eos = raw.get("eos_token_id")
    stated = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not stated:
        raise ConfigError("eos_token_id is missing; config.json or generation_config.json must name it")
    for index in stated:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < vocab_size:
            raise ConfigError(f"eos_token_id must be an id below vocab_size ({vocab_size}), got {index!r}")
    return stated


def _with_ids(base: ModelConfig, raw: Mapping[str, Any], eos_ids: list[int], mask: Mask) -> ModelConfig:
    if mask.tokens > base.vocab_size:
        raise CheckpointError(f"the tokenizer has ids up to {mask.tokens - 1}, but vocab_size is {base.vocab_size}")
    rows = base.vocab_size
    if mask.index >= rows:
        rows = math.ceil((mask.index + 1) / _ROWS) * _ROWS
    pad = raw.get("pad_token_id")
    pads = isinstance(pad, int) and 0 <= pad < rows and pad != mask.index  # some files say -1 for none
    return replace(
        base,
        vocab_size=rows,
        mask_token_id=mask.index,
        eos_token_id=eos_ids[0] if len(eos_ids) == 1 else tuple(eos_ids),
        pad_token_id=pad if pads else eos_ids[0],
    )


def _write(
    source: Source,
    pieces: Mapping[str, tuple[str, ...]],
    config: ModelConfig,
    mask: Mask,
    wanted: torch.dtype | None,
    folder: Path,
    shard_bytes: int,
) -> int:
    """Weights and both configurations; the number of parameters."""
    dtypes = {name: _dtype(source, name, parts, wanted) for name, parts in pieces.items()}
    shapes = {name: _joined(source, parts) for name, parts in pieces.items()}
    for name in (EMBEDDING, HEAD):
        if name in shapes:
            shapes[name] = (config.vocab_size, *shapes[name][1:])

    def read(name: str) -> Tensor:
        parts = [source.read(part).to(dtypes[name]) for part in pieces[name]]
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        return _with_mask_row(tensor, config.vocab_size, mask) if name in (EMBEDDING, HEAD) else tensor

    write_shards(
        folder, {name: math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items()}, read, shard_bytes
    )
    widest = reduce(torch.promote_types, (dtype for name, dtype in dtypes.items() if not keeps_precision(name)))
    write_json(folder / "config.json", config.to_dict() | {"torch_dtype": str(widest).removeprefix("torch.")})
    written = ("eos_token_id", "pad_token_id", "mask_token_id", "block_length")
    write_json(folder / "generation_config.json", {name: getattr(config, name) for name in written})
    return sum(math.prod(shape) for shape in shapes.values())


def _dtype(source: Source, name: str, parts: tuple[str, ...], wanted: torch.dtype | None) -> torch.dtype:
    if wanted is not None and not keeps_precision(name):
        return wanted
    return reduce(torch.promote_types, (source.tensors[part].dtype for part in parts))


def _with_mask_row(weight_VC: Tensor, rows: int, mask: Mask) -> Tensor:
    """The rows of a new mask token, and of those that only fill up, are the mean of all tokens' rows: inside the cloud
    of what the network knows, and never the likeliest token of a tied head."""
    if not mask.new:
        return weight_VC
    mean_C = weight_VC[: mask.tokens].mean(0, dtype=torch.promote_types(weight_VC.dtype, torch.float32))
    added = mean_C.to(weight_VC.dtype).expand(rows - len(weight_VC), -1)
    weight_VC = torch.cat((weight_VC, added))  # a copy also where no row is added
    weight_VC[mask.index] = mean_C
    return weight_VC
