"""The contract between packages: imports point one way, and a few things never appear in the source.

Everything is read from the syntax tree, so a lazy import inside a function counts like one at the top of a file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "redraft"

# What each package may import of the others. `types` and `errors` are open to all.
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "kernels": set(),
    "quantization": {"kernels"},
    "model": {"kernels", "quantization"},
    "decoding": set(),
    "text": set(),
    "skills": set(),
    "engine": {"kernels", "model", "decoding", "text"},
    "_hook": {"hf"},
    "convert": {"model", "text"},
    "hf": {"kernels", "model", "decoding", "text", "engine"},
    "server": {"model", "decoding", "text", "engine"},
    "eval": {"model", "decoding", "text", "engine", "skills", "training"},
    "training": {"kernels", "model", "decoding", "text", "skills"},
    "rl": {"kernels", "model", "decoding", "text", "engine", "skills", "training"},
}
ANYTHING = {"cli", "__init__", "__main__"}
COMMON = {"types", "errors"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
DISTRIBUTIONS = {"yaml": "pyyaml", "PIL": "pillow"}


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module that a `from ... import` names, with its leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = ["redraft", *path.relative_to(SOURCE).with_suffix("").parts]
    base = parts[: len(parts) - node.level]
    return ".".join([*base, node.module] if node.module else base)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of every import in a file; `from redraft import engine` gives `redraft.engine`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, path)
            if module == "redraft":
                yield from ((f"redraft.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


def layer_violations(path: Path) -> list[str]:
    here = package_of(path)
    if here in ANYTHING:
        return []
    allowed = ALLOWED.get(here, set()) | COMMON | {here}
    found = []
    for module, line in imports(path):
        parts = module.split(".")
        if parts[0] == "redraft" and len(parts) > 1 and parts[1] not in allowed and not parts[1].startswith("__"):
            found.append(f"{path.relative_to(ROOT)}:{line}: {here} may not import redraft.{parts[1]}")
    return found


def forbidden_uses(path: Path) -> list[str]:
    found = []
    for module, line in imports(path):
        if module.split(".")[0] in FORBIDDEN_MODULES:
            found.append(f"{path.name}:{line}: import of {module}")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{path.name}:{node.lineno}: bare except")
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__"):
            found.append(f"{path.name}:{node.lineno}: what python -O leaves out")
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "load"
            and isinstance(node.value, ast.Name)
            and node.value.id == "torch"
        ):
            found.append(f"{path.name}:{node.lineno}: torch.load")
    return found


def test_every_package_has_a_place_in_the_contract() -> None:
    packages = {package_of(path) for path in source_files()}
    assert packages <= ALLOWED.keys() | ANYTHING, f"add to ALLOWED: {packages - ALLOWED.keys() - ANYTHING}"


def test_the_contract_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {name for name, needs in ALLOWED.items() if needs <= done} - done
        assert ready, f"cycle among {ALLOWED.keys() - done}"
        done |= ready


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    assert not layer_violations(path)


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_forbidden(path: Path) -> None:
    assert not forbidden_uses(path)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "try: ...\nexcept: ...",
        "def f(x):\n    assert x > 0",
        "if __debug__: ...",
    ],
)
def test_the_check_finds_what_is_forbidden(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert forbidden_uses(path)


def test_the_check_finds_a_wrong_direction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(globals(), "SOURCE", tmp_path / "redraft")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for text in (
        "import redraft.engine",
        "from redraft import engine",
        "from ..engine import llm",
        "from .. import cli",
    ):
        path = tmp_path / "redraft" / "model" / "bad.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        assert layer_violations(path), text


def test_every_third_party_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    stated = [*project["dependencies"], *(item for name in optional if name != "dev" for item in optional[name])]
    declared = {re.split(r"[\s\[<>=!~;]", item, maxsplit=1)[0].lower() for item in stated}
    for path in source_files():
        for module, line in imports(path):
            top = module.split(".")[0]
            if top == "redraft" or top in sys.stdlib_module_names:
                continue
            name = DISTRIBUTIONS.get(top, top).lower().replace("_", "-")
            assert name in declared, f"{path.relative_to(ROOT)}:{line}: {top} is not in pyproject.toml"


@pytest.mark.parametrize(
    "code",
    [
        "import redraft",
        "import redraft.types, redraft.errors",
        "import redraft.skills",
        "from redraft.cli.main import run; assert run(['--help']) == 0",
        "from redraft.cli.main import run; assert run(['generate', '--help']) == 0",
        "from redraft.cli.main import run; assert run(['serve', '--help']) == 0",
    ],
)
def test_light_imports_stay_light(code: str) -> None:
    probe = f"{code}\nimport sys; print(sorted({{'torch', 'transformers', 'numpy'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
