"""A byte-level BPE tokenizer from the metadata of a GGUF file, as the files of Hugging Face.

GGUF keeps vocabulary, merges and the *name* of the rule that cuts a text into words before merging. The rules are
those of the models' own `tokenizer.json`; a name that isn't known is refused, since a wrong rule gives other ids
without any error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from redraft.errors import CheckpointError, ConfigError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PADDING = re.compile(r"\[PAD\d+\]")
# Kinds of tokens as GGUF numbers them: control and user-defined ones (True: special), and rows without a token.
_ADDED = {3: True, 4: False}
_UNUSED = 5
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True, slots=True)
class Words:
    """How a text is cut before merging. pattern: of one word; None for GPT-2's. single_digits: each stands alone.
    nfc: Unicode is composed first. whole: a word that is in the vocabulary isn't merged."""

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole: bool = False


_LLAMA3 = Words(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST, whole=True)
_QWEN2 = Words(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST, nfc=True)
WORDS = {
    "gpt-2": Words(),
    "smollm": Words(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and, where the file has one, chat_template.jinja.

    metadata: the fields of a GGUF file. Raises ConfigError for a kind of tokenizer that isn't byte-level BPE with a
    known rule for words, CheckpointError for fields that are missing or contradict each other.
    """
    fields: dict[str, Any] = {
        name: metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre", "tokens", "merges", "token_type")
    }
    if fields["model"] != "gpt2":
        raise ConfigError(f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE), got {fields['model']!r}")
    words = WORDS.get(fields["pre"] or "")
    if words is None:
        raise ConfigError(f"tokenizer.ggml.pre must be one of {', '.join(WORDS)}, got {fields['pre']!r}")
    missing = [f"tokenizer.ggml.{name}" for name in ("tokens", "merges") if not fields[name]]
    if missing:
        raise CheckpointError(f"the GGUF file lacks {', '.join(missing)}")
    types: list[int] = fields["token_type"] or [0] * len(fields["tokens"])
    if len(types) != len(fields["tokens"]):
        raise CheckpointError(f"tokenizer.ggml.token_type has {len(types)} entries, not {len(fields['tokens'])}")
    tokens = _without_padding(fields["tokens"], types)
    names = _names(metadata, tokens)
    tokenizer = _tokenizer(tokens, fields["merges"], words)
    added = [(token, kind) for token, kind in zip(tokens, types[: len(tokens)], strict=True) if kind in _ADDED]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=_ADDED[kind]) for token, kind in added])
    if metadata.get("tokenizer.ggml.add_bos_token") and "bos_token" in names:
        bos = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    template = metadata.get("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _without_padding(tokens: list[str], types: list[int]) -> list[str]:
    """The vocabulary without the names that a converter made up for rows of the embedding that no token has."""
    end = len(tokens)
    while end and types[end - 1] == _UNUSED and _PADDING.fullmatch(tokens[end - 1]):
        end -= 1
    return tokens[:end]


def _names(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {}
    for kind, role in _ROLES.items():
        key = f"tokenizer.ggml.{kind}_token_id"
        index = metadata.get(key)
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise CheckpointError(f"{key} must be below {len(tokens)}, the number of tokens, got {index}")
        names[role] = tokens[index]
    return names


def _tokenizer(tokens: list[str], merges: list[str], words: Words) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.tokens has {len(tokens) - len(vocabulary)} tokens twice")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    broken = next((pair for pair in pairs if not {*pair, "".join(pair)} <= vocabulary.keys()), None)
    if broken is not None:
        raise CheckpointError(f"tokenizer.ggml.merges must join two tokens of the vocabulary to a third, got {broken}")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=words.whole))
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = []
    if words.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if words.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(words.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
