"""Registration with the Auto classes of transformers.

No code of a checkpoint ever runs. A class registered from outside transformers overrules an `auto_map` for
configurations and models, with or without `trust_remote_code`, and our configuration drops `auto_map`, so that no other
Auto class finds one either. For tokenizers transformers lets the `auto_map` win when code is trusted, so there the
question is answered before it is asked.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from redraft.hf.configuration import LLaDA2MoeConfig
from redraft.hf.modeling import LLaDA2MoeModelLM
from redraft.model.config import MODEL_TYPES

# Arguments of AutoTokenizer that choose a class; ours is chosen.
_CLASS_CHOICE = ("trust_remote_code", "code_revision", "use_fast", "tokenizer_type", "config")
_HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


def register_auto_classes() -> None:
    """Idempotent. The veomni name of the family shares the configuration class, which reads both and writes one."""
    AutoConfig.register(LLaDA2MoeConfig.model_type, LLaDA2MoeConfig, exist_ok=True)
    for name in MODEL_TYPES:
        CONFIG_MAPPING.register(name, LLaDA2MoeConfig, exist_ok=True)
    AutoModelForCausalLM.register(LLaDA2MoeConfig, LLaDA2MoeModelLM, exist_ok=True)
    AutoTokenizer.register(LLaDA2MoeConfig, PreTrainedTokenizerFast, exist_ok=True)
    original = AutoTokenizer.from_pretrained
    if getattr(original, "__wrapped__", None) is None:
        AutoTokenizer.from_pretrained = _fast_for_llada2(original)


def _fast_for_llada2(original: Any) -> Any:
    @functools.wraps(original)
    def from_pretrained(pretrained_model_name_or_path: Any, *inputs: Any, **kwargs: Any) -> Any:
        if _is_llada2(pretrained_model_name_or_path, kwargs):
            kwargs = {name: value for name, value in kwargs.items() if name not in _CLASS_CHOICE}
            return PreTrainedTokenizerFast.from_pretrained(pretrained_model_name_or_path, *inputs, **kwargs)
        return original(pretrained_model_name_or_path, *inputs, **kwargs)

    return from_pretrained


def _is_llada2(name: Any, kwargs: dict[str, Any]) -> bool:
    if isinstance(kwargs.get("config"), PretrainedConfig):
        return isinstance(kwargs["config"], LLaDA2MoeConfig)
    if not kwargs.get("trust_remote_code") and not os.path.isdir(name):
        return False  # the usual path runs no code, and reading a remote configuration twice would cost a request
    try:
        raw, _ = PretrainedConfig.get_config_dict(name, **{k: v for k, v in kwargs.items() if k in _HUB})
    except OSError:
        return False
    return raw.get("model_type") in MODEL_TYPES
