"""`import redraft`: lazy, and registering with transformers in either order of import (a fake one, for speed)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import redraft

FAKE = "import redraft.hf; redraft.hf.register = lambda: print('registered after', transformers_loaded())\n"
START = "import sys\ntransformers_loaded = lambda: getattr(sys.modules.get('transformers'), 'loaded', None)\n"


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("loaded = True\n")

    def run(code: str) -> list[str]:
        code = f"{START}sys.path.insert(0, {str(tmp_path)!r})\n{code}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_public_names_are_there_and_others_are_not() -> None:
    for name in redraft.__all__:
        assert getattr(redraft, name) is not None
    assert set(redraft.__all__) <= set(dir(redraft))
    with pytest.raises(AttributeError, match="no attribute 'llm'"):
        _ = redraft.llm  # pyright: ignore[reportAttributeAccessIssue]


def test_registers_once_right_after_transformers_is_imported(run) -> None:
    assert run(f"import redraft\n{FAKE}import transformers\nimport transformers") == ["registered after True"]


def test_registers_at_once_when_transformers_is_there(run) -> None:
    code = "from redraft._hook import register_with_transformers as register\n"
    assert run(f"{code}{FAKE}import transformers\nregister()") == ["registered after True"] * 2


def test_looking_for_transformers_imports_nothing_and_loses_nothing(run) -> None:
    code = "import importlib.util\nassert importlib.util.find_spec('transformers')\nprint(transformers_loaded())\n"
    assert run(f"import redraft\n{FAKE}{code}import transformers") == ["None", "registered after True"]


def test_without_transformers_nothing_changes(run) -> None:
    code = (
        "sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ == '_AfterTransformers']\n"
        "for _ in range(2):\n"
        "    try: import transformers\n"
        "    except ModuleNotFoundError as error: print(error)\n"
        "print(len(sys.meta_path))"
    )
    assert run(f"import redraft\n{code}") == ["No module named 'transformers'"] * 2 + ["1"]
