"""Tiny folders that a user could have: the golden checkpoint, and one with a tokenizer and a chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

GOLDEN = Path(__file__).parents[1] / "golden"
SPECIAL = ["<|endoftext|>", "<|mask|>", "<role>", "</role>", "<|role_end|>"]
TEMPLATE = (
    "{% for m in messages %}<role>HUMAN</role>{{ m.content }}<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)


@pytest.fixture
def golden() -> Path:
    return GOLDEN / "seed0"


@pytest.fixture
def chat_folder(tmp_path: Path, golden: Path) -> Path:
    """The golden weights with a byte-level tokenizer of the same vocabulary size, as a checkpoint is published."""
    folder = tmp_path / "chat"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(golden / name, folder / name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_tokens([f"<unused_{index}>" for index in range(384 - 256 - len(SPECIAL))])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "config.json").read_text())
    ids = {"eos_token_id": 379, "pad_token_id": 379, "mask_token_id": 380}
    (folder / "config.json").write_text(json.dumps(config | ids))
    return folder
