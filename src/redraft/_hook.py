"""Registers the Hugging Face classes as soon as transformers is imported, without importing it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def register_with_transformers() -> None:
    """Registers now when transformers is there already, else right after its first import."""
    if "transformers" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterTransformers) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTransformers())


def _register() -> None:
    importlib.import_module("redraft.hf").register()


class _AfterTransformers(MetaPathFinder):
    """Finds transformers as the other finders do, and has registration follow its execution.

    Being looked up is not being imported (`importlib.util.find_spec`), so the finder stays until the execution.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "transformers":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            loader.exec_module = execute
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            _register()

        loader.exec_module = execute_and_register
