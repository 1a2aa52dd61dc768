"""`redraft convert`: one line when it works, one line when it doesn't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.convert import sources

from redraft.cli.main import run
from redraft.model.checkpoint import load_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return sources.save(sources.tiny(num_hidden_layers=1), tmp_path / "source")


def test_converts(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["convert", str(source), str(out), "--block-length", "4", "--dtype", "bfloat16"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{out}: ") and "mask <|mask|>" in shown and shown.count("\n") == 1
    model = load_model(out)
    assert model.config.block_length == 4 and str(model.dtype) == "torch.bfloat16"


def test_json(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(source), str(tmp_path / "out"), "--mask-token", "<|hole|>", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    model = load_model(tmp_path / "out")
    assert facts == {
        "folder": str(tmp_path / "out"),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": model.config.vocab_size,
        "mask_token": "<|hole|>",
        "mask_token_id": len(sources.TOKENS),
    }


def test_bad_input_is_one_line(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "half.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    alien = sources.save(sources.tiny(num_hidden_layers=1), tmp_path / "alien")
    sources.edit_json(alien / "config.json", architectures=["MambaForCausalLM"])
    capsys.readouterr()
    out = str(tmp_path / "out")
    for arguments, expected in [
        ([str(tmp_path / "nowhere"), out], "does not exist"),
        ([str(tmp_path / "half.gguf"), out], "not a complete GGUF file"),
        ([str(alien), out], "MambaForCausalLM"),
        ([str(source), str(tmp_path / "full")], "new or an empty folder"),
        ([str(source), out, "--dtype", "int4"], "dtype must be one of"),
        ([str(source), out, "--block-length", "0"], "block_length must be"),
        ([str(source)], "Missing argument 'out'"),
    ]:
        assert run(["convert", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.startswith("redraft: ") and err.count("\n") == 1 and expected in err, err
    assert not Path(out).exists()


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "--help"]) == 0
    assert "Example: redraft convert" in capsys.readouterr().out
