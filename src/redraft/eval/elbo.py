"""Likelihood of held-out text: bits per byte and per token by the block-diffusion bound (`training.likelihood`).

The bound is one of whole blocks: the EOS that fill the block behind an answer count as bits, since they are predicted
with it, and dropping them would tell the model where the text ends for nothing. They are no tokens and no bytes of the
text: a token is a supervised position of the document, the EOS of each turn included; bytes are those of the UTF-8 text
that these tokens decode to, without control tokens. So both figures are upper bounds of the true ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import InvalidInput
from redraft.eval.report import grid
from redraft.eval.skills import HeldOut, draw_tasks
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import DataConfig, SourceConfig, open_source
from redraft.training.data.documents import PIECE, Renderer
from redraft.training.data.rows import Chat
from redraft.training.likelihood import Estimate, Estimator
from redraft.types import Sample

ALL = "all"


@dataclass(frozen=True, slots=True)
class Text:
    """A document that is scored. group: the skill that it is of, or the name of its file. bytes: of its scored text."""

    sample: Sample
    group: str
    bytes: int

    @property
    def tokens(self) -> int:
        return int(self.sample.supervised.sum())


@dataclass(frozen=True, slots=True)
class Rate:
    """Bits over a count, as a ratio of sums. standard_error: over documents, the masks' draws included; None for one
    document. mask_error: the part that the drawing of masks alone is to blame for; 0 where no mask is drawn."""

    value: float
    standard_error: float | None
    mask_error: float


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The bound of a group of documents. per_byte: None where they hold control tokens only."""

    group: str
    documents: int
    tokens: int
    bytes: int
    per_byte: Rate | None
    per_token: Rate


def file_texts(
    path: Path, tokenizer: Tokenizer, *, context: int, block_length: int, bad_rows: str = "fail"
) -> list[Text]:
    """The documents of a data file, in its order; a plain text longer than `context` is split at block borders.

    Rows and errors are those of training (`training.data`): ConfigError for the file, InvalidInput for bad rows, unless
    `bad_rows` is "skip".
    """
    source = SourceConfig(path=str(path))
    config = DataConfig(sources=(source,), shuffle=False, bad_rows=bad_rows, max_length=context)
    rows = open_source(config, tokenizer, seed=0, total=0, block_length=block_length)
    return [_text(sample, path.name, tokenizer) for index in range(rows.rows or 0) for sample in rows.documents(index)]


def skill_texts(
    tokenizer: Tokenizer, *, context: int, seed: int = 0, per_skill: int = 20, split: HeldOut = "both"
) -> list[Text]:
    """The right answers to held-out prompts of each skill. Raises InvalidInput for one over the context."""
    renderer, out = Renderer(tokenizer, context), []
    for index, (task, _) in enumerate(draw_tasks(seed, per_skill, split)):
        messages = [*task.messages, {"role": "assistant", "content": task.answer}]
        row = Chat(messages, list(task.tools) or None, (len(messages) - 1,))
        out += [_text(sample, task.skill, tokenizer) for sample in renderer.documents(row, index)]
    return out


def summarise(texts: Sequence[Text], estimates: Sequence[Estimate]) -> list[Likelihood]:
    """All documents, then each group where there are several. Raises InvalidInput when there are none."""
    if not texts:
        raise InvalidInput("there is no document to score")
    groups = list(dict.fromkeys(text.group for text in texts))
    out = [_likelihood(ALL, texts, estimates)]
    for group in groups if len(groups) > 1 else ():
        chosen = [i for i, text in enumerate(texts) if text.group == group]
        out.append(_likelihood(group, [texts[i] for i in chosen], [estimates[i] for i in chosen]))
    return out


def content(rows: Sequence[Likelihood], estimator: Estimator, model: str) -> dict[str, Any]:
    """The report as JSON-able values."""
    return {
        "model": model,
        "estimator": {
            "kind": "exact" if estimator.exact else "stratified",
            "samples": None if estimator.exact else estimator.samples,
            "block_length": estimator.block_length,
            "seed": estimator.seed,
        },
        "rows": [asdict(row) for row in rows],
    }


def markdown(rows: Sequence[Likelihood], estimator: Estimator, model: str) -> str:
    """The report as text: how the figures were made, and a table."""
    how = "all masks" if estimator.exact else f"{estimator.samples} masks of each block, seed {estimator.seed}"
    table = grid(
        ("documents of", "documents", "tokens", "bytes", "bits per byte", "bits per token"),
        [
            (
                row.group,
                str(row.documents),
                str(row.tokens),
                str(row.bytes),
                _shown(row.per_byte),
                _shown(row.per_token),
            )
            for row in rows
        ],
    )
    return (
        f"Model `{model}`, block-diffusion bound, blocks of {estimator.block_length} tokens, {how}. Lower is better. "
        f"± is one standard error over documents, in brackets that of drawing the masks.\n\n{table}\n"
    )


def write_report(
    folder: Path, texts: Sequence[Text], estimates: Sequence[Estimate], report: dict[str, Any], text: str
) -> None:
    """Writes elbo.json, elbo.md, and documents.jsonl: a line for each document, by its row in the data and its piece.

    Raises InvalidInput where the folder can't be written.
    """
    lines = [
        {
            "row": one.sample.index & ((1 << PIECE) - 1),
            "piece": one.sample.index >> PIECE,
            "group": one.group,
            "tokens": one.tokens,
            "bytes": one.bytes,
            "bits": -drawn.elbo / math.log(2),
            "mask_error": drawn.error / math.log(2),
        }
        for one, drawn in zip(texts, estimates, strict=True)
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "elbo.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (folder / "elbo.md").write_text(text, encoding="utf-8")
        (folder / "documents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write the report to {folder}: {error.strerror or error}") from error


def _text(sample: Sample, group: str, tokenizer: Tokenizer) -> Text:
    return Text(sample, group, len(tokenizer.decode(sample.tokens[sample.supervised].tolist()).encode()))


def _likelihood(group: str, texts: Sequence[Text], estimates: Sequence[Estimate]) -> Likelihood:
    bits_D, error_D = (
        np.array(values) / math.log(2) for values in zip(*((-one.elbo, one.error) for one in estimates), strict=True)
    )
    tokens_D, bytes_D = (
        np.array(values) for values in zip(*((text.tokens, text.bytes) for text in texts), strict=True)
    )
    return Likelihood(
        group,
        len(texts),
        int(tokens_D.sum()),
        int(bytes_D.sum()),
        _rate(bits_D, error_D, bytes_D) if bytes_D.any() else None,
        _rate(bits_D, error_D, tokens_D),
    )


def _rate(bits_D: np.ndarray, error_D: np.ndarray, count_D: np.ndarray) -> Rate:
    """The ratio estimator and its linearised variance (Cochran 1977, section 6.4), documents drawn independently."""
    total, documents = count_D.sum(), len(count_D)
    value = bits_D.sum() / total
    spread = ((bits_D - value * count_D) ** 2).sum() * documents / max(documents - 1, 1)
    return Rate(
        float(value),
        float(math.sqrt(spread) / total) if documents > 1 else None,
        float(math.sqrt((error_D**2).sum()) / total),
    )


def _shown(rate: Rate | None) -> str:
    if rate is None:
        return ""
    spread = "" if rate.standard_error is None else f" ± {rate.standard_error:.4f}"
    return f"{rate.value:.4f}{spread} [{rate.mask_error:.4f}]"
