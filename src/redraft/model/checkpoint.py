"""Reading and writing checkpoints in the Hugging Face layout (spec/model.md, "Checkpoint").

Only safetensors files are read: they hold numbers and nothing that runs. One tensor at a time goes from its file into
its place (`model.reader`), so that the peak is the model plus one tensor. Reading and writing back gives the same bytes
of every tensor.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from redraft.errors import CheckpointError, InvalidInput
from redraft.model.config import ModelConfig
from redraft.model.names import official_slots
from redraft.model.network import LLaDA2
from redraft.model.reader import EMBEDDING, HEAD, CheckpointReader, Rows, materialise
from redraft.model.storage import DTYPES, INDEX, SHARD, SHARD_BYTES, SINGLE, write_json, write_shards

_CONFIG = "config.json"
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def load_model(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    config: ModelConfig | None = None,
) -> LLaDA2:
    """The network of a checkpoint folder, in evaluation mode.

    dtype: of the weights; None takes the file's (the widest, if they differ, so that nothing is lost). Router weights
    and expert biases are at least float32 whatever it is. config: used instead of the folder's `config.json`.
    Raises CheckpointError, one message for all that is missing, extra or mis-shaped; ConfigError for the config.
    """
    reader = CheckpointReader(path, config)
    model = LLaDA2(reader.config, device="meta", dtype=reader.dtype if dtype is None else resolve_dtype(dtype))
    materialise(model, device)
    state = model.state_dict()
    reader.fill({name: Rows(tensor) for name, tensor in state.items()})
    dtypes = {name: tensor.dtype for name, tensor in state.items()}
    model.file_dtypes = reader.widened(dtypes, keep_all=dtype is None)
    return model.eval()


def save_model(
    model: LLaDA2,
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes weights and `config.json` in the official layout, in shards with an index above `shard_bytes`.

    config: content of `config.json` instead of the network's own. state: the tensors instead of the network's own,
    which may then be on the meta device: one is asked for at a time, and written in the dtype of the network's. Files
    are written aside and renamed at the end, so an interrupted save leaves the old checkpoint; weights of an earlier
    save that are no longer valid are removed.
    """
    if shard_bytes < 1:
        raise InvalidInput(f"shard_bytes must be a positive number of bytes, got {shard_bytes}")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; a checkpoint is saved into a folder")
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        names = _write_weights(model, model.state_dict() if state is None else state, aside, shard_bytes)
        content = dict(config if config is not None else model.config.to_dict())
        content["torch_dtype"] = str(model.dtype).removeprefix("torch.")
        write_json(aside / _CONFIG, content)
        for name in (*names, _CONFIG):
            os.replace(aside / name, folder / name)
        for old in folder.iterdir():
            ours = old.name in (SINGLE, INDEX) or SHARD.fullmatch(old.name)
            if ours and old.name not in names:
                old.unlink()
    except SafetensorError as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating dtype that the network runs in, from its name or itself."""
    found = _DTYPE_NAMES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise InvalidInput(f"dtype must be one of {', '.join(_DTYPE_NAMES)}, got {dtype!r}")
    return found


# --- writing ----------------------------------------------------------------------------------------------------


def _write_weights(model: LLaDA2, state: Mapping[str, Tensor], folder: Path, shard_bytes: int) -> list[str]:
    """Writes the weights into `folder` and returns the file names, the index last."""
    own = model.state_dict()
    slots = official_slots({name: tuple(tensor.shape) for name, tensor in own.items()})
    if model.config.tie_word_embeddings and HEAD in model.file_dtypes:
        slots[HEAD] = slots[EMBEDDING]  # the file had the tied copy: write it back
    dtypes = {name: own[slot.parameter].dtype for name, slot in slots.items()}
    for name in model.file_dtypes.keys() & slots.keys():
        narrow, wide = model.file_dtypes[name], dtypes[name]
        if narrow.itemsize < wide.itemsize:
            dtypes[name] = _lossless(state[slots[name].parameter][slots[name].index].to(wide), narrow)
    sizes = {name: math.prod(slot.shape) * dtypes[name].itemsize for name, slot in slots.items()}

    def read(name: str) -> Tensor:
        slot = slots[name]
        tensor = state[slot.parameter][slot.index].to("cpu", dtypes[name])
        # safetensors refuses two names for one storage
        return tensor.clone() if name == HEAD and model.config.tie_word_embeddings else tensor

    return write_shards(folder, sizes, read, shard_bytes)


def _lossless(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The narrower dtype that a tensor had in its file, where that still loses nothing; else the one it has."""
    return dtype if torch.equal(tensor.to(dtype).to(tensor.dtype), tensor) else tensor.dtype
