"""Redraft: block-diffusion language models that draft a block of tokens in parallel and edit their own draft.

    import redraft
    llm = redraft.LLM()                      # the model inside the package
    print(llm.chat([{"role": "user", "content": "What is 2 + 3?"}])[0].text)

Importing this package is light: neither torch nor transformers is imported. When transformers is imported, before or
after, the classes of `llada2_moe` are registered with its Auto classes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from redraft._hook import register_with_transformers

if TYPE_CHECKING:
    from redraft.engine.llm import LLM
    from redraft.types import CanvasEvent, Choice, Completion, SamplingParams, Stats

__version__ = "0.1.0"
__all__ = ["LLM", "CanvasEvent", "Choice", "Completion", "SamplingParams", "Stats", "__version__"]

_LAZY = {"LLM": "redraft.engine.llm"} | dict.fromkeys(
    ("CanvasEvent", "Choice", "Completion", "SamplingParams", "Stats"), "redraft.types"
)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'redraft' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_transformers()
