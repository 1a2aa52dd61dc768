"""Transformers classes for `llada2_moe`: configuration, model, and the right tokenizer class.

`import redraft` registers them with the Auto classes as soon as transformers is there, so no flag is needed. Importing
this package is light; `register` is what imports torch and transformers.
"""

from __future__ import annotations


def register() -> None:
    """Makes AutoConfig, AutoModelForCausalLM and AutoTokenizer know `llada2_moe`; calling it again changes nothing."""
    from redraft.hf.auto import register_auto_classes

    register_auto_classes()
