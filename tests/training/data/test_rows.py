"""Every kind of row gives the right documents, and every bad one is named by file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redraft.errors import ConfigError, InvalidInput
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import DataConfig, RowSource, SourceConfig, open_pairs, open_source
from redraft.types import Sample

U = {"role": "user", "content": "Who?"}
A = {"role": "assistant", "content": "Ann"}
B = {"role": "assistant", "content": "Max"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
ASKED = "<role>HUMAN</role>Who?<|role_end|><role>ASSISTANT</role>"


def config(path: Path, source: dict[str, Any] | None = None, **changes: Any) -> DataConfig:
    settings: dict[str, Any] = {"shuffle": False, "max_length": 100} | changes
    return DataConfig(sources=(SourceConfig(path=str(path), **source or {}),), **settings)


def opened(path: Path, tokenizer: Tokenizer, source: dict[str, Any] | None = None, **changes: Any) -> RowSource[Sample]:
    return open_source(config(path, source, **changes), tokenizer, seed=0, total=10)


def shown(tokenizer: Tokenizer, sample: Sample) -> str:
    """The text of a document, with [brackets] around what is learnt."""
    text, before = "", False
    for index, learnt in zip([*sample.tokens.tolist(), None], [*sample.supervised.tolist(), False], strict=True):
        text += "" if learnt == before else "[" if learnt else "]"
        text += "" if index is None else tokenizer.decode([index], skip_special=False)
        before = learnt
    return text


@pytest.mark.parametrize(
    ("row", "settings", "document"),
    [
        (
            {"messages": [U, A, U, B]},
            {},
            f"{ASKED}[Ann<|role_end|>]{ASKED}[Max<|role_end|>]",
        ),
        ({"messages": [U, A, U]}, {}, f"{ASKED}[Ann<|role_end|>]"),
        ({"messages": [U, A | {"weight": 0}, U, B]}, {}, f"{ASKED}Ann<|role_end|>{ASKED}[Max<|role_end|>]"),
        (
            {"messages": [U, A], "tools": [TOOL]},
            {},
            f"<role>SYSTEM</role>Tools:\nadd()<|role_end|>{ASKED}[Ann<|role_end|>]",
        ),
        (
            {"messages": [U, A], "tools": '[{"name": "add"}]'},
            {},
            f"<role>SYSTEM</role>Tools:\nadd()<|role_end|>{ASKED}[Ann<|role_end|>]",
        ),
        ({"prompt": "Who? ", "completion": "Ann"}, {}, "Who? [Ann<|role_end|>]"),
        ({"prompt": "Who?", "completion": "Ann"}, {"chat": True}, f"{ASKED}[Ann<|role_end|>]"),
        ({"prompt": [U], "completion": [A]}, {}, f"{ASKED}[Ann<|role_end|>]"),
        ({"prompt": [U, B, U], "completion": [A]}, {}, f"{ASKED}Max<|role_end|>{ASKED}[Ann<|role_end|>]"),
        ({"text": "Ann has a cat."}, {}, "[Ann has a cat.<|role_end|>]"),
        ({"dialog": [U, A], "text": None}, {"columns": {"messages": "dialog"}}, f"{ASKED}[Ann<|role_end|>]"),
        ({"text": "<|role_end|>"}, {}, "[<|role_end|><|role_end|>]"),
    ],
)
def test_each_kind_of_row(
    tokenizer: Tokenizer, write: Any, row: dict[str, Any], settings: dict[str, Any], document: str
) -> None:
    source = opened(write(row), tokenizer, settings)
    (sample,) = source.documents(0)
    assert source.rows == 1 and sample.index == 0
    assert (sample.tokens.dtype, sample.supervised.dtype) == ("int32", "bool")
    assert shown(tokenizer, sample) == document
    assert sample.tokens[-1] == tokenizer.eos_ids[0] and sample.supervised[-1]


def test_control_strings_in_a_text_are_text(tokenizer: Tokenizer, write: Any) -> None:
    (sample,) = opened(write({"text": "<|role_end|>"}), tokenizer).documents(0)
    assert not tokenizer.special_ids & set(sample.tokens[:-1].tolist())


def test_a_long_text_is_split_at_block_borders(tokenizer: Tokenizer, write: Any) -> None:
    text = "Ann has a cat. " * 30
    source = open_source(
        config(write({"text": text}), max_length=70), tokenizer, seed=0, total=1, block_length=32, context=128
    )
    pieces = source.documents(5)
    ids = [*tokenizer.encode(text), tokenizer.eos_ids[0]]
    assert [token for piece in pieces for token in piece.tokens.tolist()] == ids
    assert [len(piece) for piece in pieces[:-1]] == [64] * (len(pieces) - 1) and len(pieces) > 2
    assert all(piece.supervised.all() for piece in pieces)
    assert len({piece.index for piece in pieces}) == len(pieces) and pieces[0].index == 5


BAD: list[tuple[Any, str]] = [
    ("{", "isn't valid JSON"),
    ("[1]", "must be a JSON object, got a list"),
    ({"other": 1}, "no messages, which the first row of this source has; it has other"),
    ({"messages": []}, "messages must be a list of messages"),
    ({"messages": "hi"}, "messages must be a list of messages, got 'hi'"),
    ({"messages": [3]}, r"messages\[0\] must be an object"),
    ({"messages": [{"content": "x"}]}, r"messages\[0\]\.role must be a word"),
    ({"messages": [U, {"role": "assistant", "content": 5}]}, r"messages\[1\]\.content must be text, got 5"),
    ({"messages": [U, {"role": "assistant", "content": " "}]}, r"messages\[1\]\.content is empty"),
    ({"messages": [U, A | {"tool_calls": "x"}]}, r"messages\[1\]\.tool_calls must be a list"),
    ({"messages": [U, A | {"weight": 2}]}, r"messages\[1\]\.weight must be 0 or 1"),
    ({"messages": [U, A | {"weight": 0}]}, "weight 0, so nothing is learnt"),
    ({"messages": [U]}, "holds no turn of the assistant"),
    ({"messages": [A]}, "begins with the assistant"),
    ({"messages": [U, A], "tools": "{"}, "tools must be a list of function schemas or its JSON"),
    ({"messages": [U, A], "tools": [1]}, "tools must be a list of function schemas"),
    ({"messages": [{"role": "judge", "content": "x"}, A]}, "role must be system, user, assistant or tool, got judge"),
    ({"messages": [U, {"role": "assistant", "content": "Ann " * 200}]}, r"tokens, over data\.max_length"),
]


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[reason[:24] for _, reason in BAD])
def test_a_bad_row_is_named_or_skipped(tokenizer: Tokenizer, write: Any, row: Any, reason: str) -> None:
    path = write({"messages": [U, A]}, "", row, {"messages": [U, B]})
    with pytest.raises(InvalidInput, match=rf"1 bad row: .*rows\.jsonl:3: .*{reason}.*bad_rows=skip") as error:
        opened(path, tokenizer)
    assert "\n" not in str(error.value)
    said: list[str] = []
    source = open_source(config(path, bad_rows="skip"), tokenizer, seed=0, total=1, report=said.append)
    assert len(said) == 1 and "rows.jsonl:3" in said[0] and source.rows == 2
    assert [shown(tokenizer, source.documents(i)[0]) for i in (0, 1)] == [
        f"{ASKED}[Ann<|role_end|>]",
        f"{ASKED}[Max<|role_end|>]",
    ]


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ({"text": "a"}, {"text": " "}, "text is empty"),
        ({"text": "a"}, {"text": 4}, "text must be text, got 4"),
        ({"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": ""}, "completion is empty"),
        ({"prompt": "a", "completion": "b"}, {"prompt": [U], "completion": [U]}, "completion holds no turn"),
        ({"prompt": "a", "completion": "b"}, {"prompt": 4, "completion": "b"}, "prompt must be a list of messages"),
    ],
)
def test_bad_rows_of_other_kinds(
    tokenizer: Tokenizer, write: Any, good: dict[str, Any], bad: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"rows\.jsonl:2: {reason}"):
        opened(write(good, bad), tokenizer)


def test_bytes_that_are_not_text_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "\xff"}\n')
    with pytest.raises(InvalidInput, match=r"a\.jsonl:2: isn't UTF-8"):
        opened(tmp_path / "a.jsonl", tokenizer)


def test_many_bad_rows_are_counted(tokenizer: Tokenizer, write: Any) -> None:
    with pytest.raises(InvalidInput, match=r"8 bad rows: .*:2: .*:6: .*; and 3 more"):
        opened(write({"text": "a"}, *["x"] * 8), tokenizer)
    with pytest.raises(InvalidInput, match="no row to train on; 1 bad row"):
        opened(write("x"), tokenizer, bad_rows="skip")


def test_without_a_full_check_a_bad_row_shows_when_its_turn_comes(tokenizer: Tokenizer, write: Any) -> None:
    path = write({"messages": [U, A]}, {"messages": [U, {"role": "assistant", "content": "Ann " * 200}]})
    source = opened(path, tokenizer, check="schema")
    assert len(source.documents(0)) == 1
    with pytest.raises(InvalidInput, match=r"rows\.jsonl:2: has \d+ tokens"):
        source.documents(1)
    source = opened(path, tokenizer, check="schema", bad_rows="skip")
    assert (source.documents(1), source.bad.count) == ([], 1)


PAIRS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": "Who? ", "chosen": "Ann", "rejected": "Max"}, "Who? [Ann<|role_end|>]", "Who? [Max<|role_end|>]"),
    ({"prompt": [U], "chosen": [A], "rejected": [B]}, f"{ASKED}[Ann<|role_end|>]", f"{ASKED}[Max<|role_end|>]"),
    ({"prompt": "Who?", "chosen": [A], "rejected": [B]}, f"{ASKED}[Ann<|role_end|>]", f"{ASKED}[Max<|role_end|>]"),
    (
        {"prompt": "Who?", "chosen": [U, A, U, A], "rejected": [U, A, U, B]},
        f"{ASKED}Ann<|role_end|>{ASKED}[Ann<|role_end|>]",
        f"{ASKED}Ann<|role_end|>{ASKED}[Max<|role_end|>]",
    ),
]


@pytest.mark.parametrize(("row", "chosen", "rejected"), PAIRS)
def test_preference_pairs(tokenizer: Tokenizer, write: Any, row: dict[str, Any], chosen: str, rejected: str) -> None:
    source = open_pairs(config(write(row)), tokenizer, seed=0)
    (pair,) = source.documents(3)
    assert (shown(tokenizer, pair.chosen), shown(tokenizer, pair.rejected)) == (chosen, rejected)
    assert pair.index == pair.chosen.index == 3 != pair.rejected.index
    with pytest.raises(InvalidInput, match="is a preference pair"):
        opened(write(row), tokenizer)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
        ({"prompt": "a", "chosen": "b", "rejected": [B]}, "must both be strings"),
        ({"chosen": "b", "rejected": "c"}, "no prompt, and chosen isn't a whole conversation"),
        ({"chosen": [U, A], "rejected": [U | {"content": "x"}, B]}, "don't begin with the same prompt"),
        ({"chosen": [U, A], "rejected": [U, A, U, B]}, "after what they share"),
    ],
)
def test_bad_pairs_are_named(tokenizer: Tokenizer, write: Any, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=rf"rows\.jsonl:2: .*{reason}"):
        open_pairs(config(write(PAIRS[0][0], row)), tokenizer, seed=0)


def test_documents_are_no_pairs(tokenizer: Tokenizer, write: Any) -> None:
    with pytest.raises(InvalidInput, match=r"rows\.jsonl:1: isn't a preference pair"):
        open_pairs(config(write({"text": "a"})), tokenizer, seed=0)
    with pytest.raises(ConfigError, match="preference training"):
        open_pairs(DataConfig(skills={"math": 1}), tokenizer, seed=0)
