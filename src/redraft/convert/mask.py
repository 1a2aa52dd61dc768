"""The mask token that a diffusion model needs and an autoregressive one lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from redraft.errors import CheckpointError, InvalidInput
from redraft.text.tokenizer import Tokenizer

NEW = "<|mask|>"
_USUAL = (NEW, "[MASK]", "<mask>")
# <|reserved_special_token_0|> (Llama 3), <|reserved_token_0|> (Ling), <unused0>, <|extra_0|>
_UNUSED = re.compile(r"\W*(reserved|unused|extra)[a-z_]*\d+\W*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Mask:
    """The chosen token. new: it was not in the vocabulary, so no row has been trained for it. tokens: ids in use
    before it, one more than the largest."""

    token: str
    index: int
    new: bool
    tokens: int


def add_mask_token(folder: Path, wanted: str | None = None, eos_ids: Iterable[int] = ()) -> Mask:
    """Chooses the mask token of the tokenizer in a folder, and writes it into the folder's files.

    wanted: a token to take; None takes the tokenizer's own mask token, else a usual name, else the first one that the
    vocabulary keeps in reserve, else a new one, `<|mask|>`. eos_ids: ids that end a text, beside the tokenizer's own.
    Raises InvalidInput when the wanted token has a use already.
    """
    tokenizer = Tokenizer.load(folder)
    ordinary = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    mask = _choice(tokenizer, ordinary, wanted, {*eos_ids, *tokenizer.eos_ids})
    _write(folder, mask)
    written = Tokenizer.load(folder)
    if written.mask_id != mask.index or mask.index not in written.special_ids:
        raise CheckpointError(
            f"tokenizer.json gives the mask token {mask.token!r} the id {written.mask_id}, not {mask.index}"
        )
    return mask


def _choice(tokenizer: Tokenizer, vocabulary: tokenizers.Tokenizer, wanted: str | None, eos_ids: set[int]) -> Mask:
    template = tokenizer.chat_template or ""
    known = {token: index for index, token in sorted(tokenizer.added.items()) if index not in eos_ids}
    if wanted is not None:
        used = wanted not in known and vocabulary.token_to_id(wanted) is not None
        if not wanted or used or wanted in template:
            raise InvalidInput(f"the mask token must be one without another use, got {wanted!r}")
        token = wanted
    else:
        own = None if tokenizer.mask_id is None else tokenizer.token(tokenizer.mask_id)
        usual = (name for name in (own, *_USUAL) if name in known)
        reserved = (name for name in known if _UNUSED.fullmatch(name) and name not in template)
        token = next(usual, None) or next(reserved, None) or NEW
    size = tokenizer.vocab_size
    return Mask(token, known.get(token, size), token not in known, size)


def _write(folder: Path, mask: Mask) -> None:
    """Names the mask in the configuration and, as the vocabulary's next id, in both lists of added tokens."""
    config = _read(folder / "tokenizer_config.json")
    config["mask_token"] = mask.token
    entry = _complete({"content": mask.token, "special": True})
    vocabulary = _read(folder / "tokenizer.json")
    added = {token["id"]: token for token in vocabulary.get("added_tokens") or ()}
    listed = config.get("added_tokens_decoder") or {}
    if mask.new:
        # Tokens that only the configuration lists have ids before the new one's.
        added = {int(index): {"id": int(index), **_complete(token)} for index, token in listed.items()} | added
        if listed:
            config["added_tokens_decoder"] = {**listed, str(mask.index): entry}
    added[mask.index] = {"id": mask.index, **entry}
    vocabulary["added_tokens"] = [added[index] for index in sorted(added)]
    special = folder / "special_tokens_map.json"
    if special.exists():
        _dump(special, {**_read(special), "mask_token": mask.token})
    _dump(folder / "tokenizer.json", vocabulary)
    _dump(folder / "tokenizer_config.json", config)


def _complete(token: dict[str, Any]) -> dict[str, Any]:
    """An added token with every flag that tokenizer.json must state; the defaults are those of the library."""
    special = bool(token.get("special", False))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"content": token["content"], **{name: token.get(name, value) for name, value in flags.items()}}


def _read(path: Path) -> dict[str, Any]:
    """A file that `Tokenizer.load` has just accepted."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
