"""Where rows come from, and that an index means the same documents in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redraft.errors import ConfigError
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import DataConfig, RowSource, SourceConfig, corpus, open_source
from redraft.types import Sample


def texts_of(tokenizer: Tokenizer, source: RowSource[Sample], indices: Any) -> list[str]:
    return [tokenizer.decode(sample.tokens.tolist()) for i in indices for sample in source.documents(i)]


def opened(tokenizer: Tokenizer, *sources: dict[str, Any], seed: int = 0, **changes: Any) -> RowSource[Sample]:
    config = DataConfig(sources=tuple(SourceConfig(**source) for source in sources), **changes)
    return open_source(config, tokenizer, seed=seed, total=100)


def rows(count: int, letter: str = "a") -> list[dict[str, str]]:
    return [{"text": f"{letter}{i}"} for i in range(count)]


def test_all_sources_make_one_epoch_without_weights(tokenizer: Tokenizer, write: Any) -> None:
    write(*rows(3), name="folder/x.jsonl")
    write(*rows(4, "b"), name="folder/deep/y.jsonl")
    folder = write(*rows(2, "c"), name="folder/z.ndjson").parent
    other = write(*rows(5, "d"))
    source = opened(tokenizer, {"path": str(folder)}, {"path": str(other)}, seed=3)
    assert source.rows == 14
    first, second = (texts_of(tokenizer, source, range(i, i + 14)) for i in (0, 14))
    every = sorted(row["text"] for row in (*rows(3), *rows(4, "b"), *rows(2, "c"), *rows(5, "d")))
    assert sorted(first) == sorted(second) == every and first != second


def test_weights_mix_sources_and_skills(tokenizer: Tokenizer, write: Any) -> None:
    one, two = write(*rows(7), name="a.jsonl"), write(*rows(9, "b"), name="b.jsonl")
    source = opened(
        tokenizer,
        {"path": str(one), "weight": 1.0},
        {"path": str(two), "weight": 2.0},
        skills={"math": 1.0},
        skills_weight=1.0,
        max_length=900,
    )
    samples = [source.documents(i)[0] for i in range(1000)]
    assert [sample.index for sample in samples] == list(range(1000)) and source.rows is None
    found = [tokenizer.decode(sample.tokens.tolist()) for sample in samples]
    assert [sum(text[:1] == letter and len(text) == 2 for text in found) for letter in "ab"] == [250, 500]
    of_b = [text for text in found if text[:1] == "b" and len(text) == 2]
    assert sorted(of_b[:9]) == sorted(of_b[9:18]) == [row["text"] for row in rows(9, "b")]


def test_the_fingerprint_changes_with_the_data(tokenizer: Tokenizer, write: Any) -> None:
    path = write(*rows(3))
    before = opened(tokenizer, {"path": str(path)}).fingerprint
    assert opened(tokenizer, {"path": str(path)}).fingerprint == before
    write(*rows(3, "x"))
    assert opened(tokenizer, {"path": str(path)}).fingerprint != before


FRESH = """
import json, sys
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import DataConfig, SourceConfig, open_source
config = DataConfig(sources=tuple(SourceConfig(path=path, weight=1.0) for path in sys.argv[2:]),
                    skills={"math": 1.0}, skills_weight=1.0, max_length=900)
source = open_source(config, Tokenizer.load(sys.argv[1]), seed=5, total=100)
print(json.dumps([[s.tokens.tolist(), s.index] for i in range(37, 49) for s in source.documents(i)]))
"""


def test_an_index_gives_the_same_documents_in_a_fresh_process(tmp_path: Path, write: Any) -> None:
    from redraft.text.build import train_tokenizer

    tokenizer = train_tokenizer(["Ann has a cat."], 300, tmp_path / "t")
    paths = [str(write(*rows(count), name=f"{count}.jsonl")) for count in (5, 8)]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, tmp_path / "t", *paths], capture_output=True, text=True, check=True
    )
    source = opened(
        tokenizer,
        *({"path": path, "weight": 1.0} for path in paths),
        seed=5,
        skills={"math": 1.0},
        skills_weight=1.0,
        max_length=900,
    )
    here = [[s.tokens.tolist(), s.index] for i in range(60) for s in source.documents(i)]
    assert json.loads(done.stdout) == here[37:49]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": [{"path": "nowhere.jsonl"}]}, r"nowhere\.jsonl doesn't exist"),
        ({"sources": [{"path": "/nowhere"}]}, "/nowhere doesn't exist"),
        ({"sources": [{}]}, "needs a path"),
        ({"sources": [{"path": "a", "weight": -1.0}]}, r"weight must be a number of at least 0, got -1"),
        ({"sources": [{"path": "a", "buffer": 0}]}, "buffer must be at least 1, got 0"),
        ({"sources": [{"path": "a", "columns": {"mesages": "b"}}]}, "unknown column 'mesages'"),
        ({"sources": [{"path": "a", "weight": 1.0}, {"path": "b"}]}, "every source a weight, or none"),
        ({"sources": [{"path": "a", "streaming": True}, {"path": "b"}]}, "streaming source among others needs weights"),
        ({"sources": [{"path": "a"}], "skills": {"math": 1.0}}, "skills_weight"),
        ({"bad_rows": "ignore"}, r"data\.bad_rows must be 'fail' or 'skip', got 'ignore'"),
        ({"check": "some"}, r"data\.check must be 'all' or 'schema'"),
        ({"skills": {"math": -1.0}}, r"data\.skills\.math must be a weight"),
        ({}, "needs skills or sources"),
    ],
)
def test_wrong_settings_are_named(tokenizer: Tokenizer, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(tokenizer, *settings.pop("sources", []), **settings)


def test_an_unknown_ending_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"unknown ending '\.txt'; known: \.jsonl"):
        opened(tokenizer, {"path": str(tmp_path / "a.txt")})


def test_a_recipe_reads_sources(tmp_path: Path) -> None:
    from redraft.training.recipe import load_recipe

    path = tmp_path / "recipe.yaml"
    path.write_text(
        "data:\n  sources:\n    - {path: a.jsonl, weight: 2, columns: {text: body}}\n    - {path: b, weight: 1}\n"
    )
    first, second = load_recipe(path).data.sources
    assert (first.path, first.weight, first.columns, second.path) == ("a.jsonl", 2.0, {"text": "body"}, "b")
    with pytest.raises(ConfigError, match="did you mean 'weight'"):
        load_recipe(path, ["data.sources=[{path: a, wieght: 1}]"])


def test_the_corpus_of_a_tokenizer(write: Any) -> None:
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Ann"}]},
    ]
    path = write({"messages": messages, "tools": [{"name": "add"}]})
    found = corpus(DataConfig(sources=(SourceConfig(path=str(path)),)), seed=0, total=10, samples=2)
    assert list(found) == ["Who?", "Ann", '{"name": "add"}'] * 2
    assert len(list(corpus(DataConfig(skills={"math": 1.0}), seed=0, total=10, samples=3))) == 6
