"""Guides say what the code says: keys of recipes, metrics, rows, files, links."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from tests.training.test_loop import recipe as tiny_recipe

from redraft.model.folder import checkpoint_folder
from redraft.rl.recipe import RLRecipe
from redraft.text.tokenizer import Tokenizer
from redraft.training.build import open_run
from redraft.training.data.documents import Renderer
from redraft.training.data.rows import Preference, kind_of, parse
from redraft.training.preference import PreferenceConfig, PreferenceObjective
from redraft.training.recipe import Recipe, load_as
from redraft.training.step import train_step
from redraft.types import SamplingParams

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
RL_GUIDE = (ROOT / "docs" / "rl.md").read_text(encoding="utf-8")
STRUCTURE = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = {".py", ".html", ".css", ".js", ".svg"}
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def section(title: str, guide: str = GUIDE) -> str:
    """What stands under a heading of a guide, up to the next one of its level."""
    return guide.split(f"\n## {title}\n")[1].split("\n## ")[0]


def of_recipe(kind: type, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a dataclass and of those inside it, with its default; a section is no key, a list of them is."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        name, hint = f"{where}{field.name}", hints[field.name]
        inside = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
        if not is_dataclass(hint):
            yield name, field.default if field.default_factory is MISSING else field.default_factory()
        for part in inside:
            yield from of_recipe(part, f"{name}.")  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """A default as YAML has it."""
    return [plain(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize(("kind", "guide"), [(Recipe, GUIDE), (RLRecipe, RL_GUIDE)], ids=["training", "rl"])
def test_every_key_of_a_recipe_stands_in_its_guide_with_its_default(kind: type, guide: str) -> None:
    rows = re.findall(r"^\| `([a-z_0-9.]+)` \| `([^`]+)` \|", section("Every key", guide), re.MULTILINE)
    stated = {key: yaml.safe_load(default) for key, default in rows}
    assert len(stated) == len(rows), "a key stands there twice"
    actual = {key: plain(default) for key, default in of_recipe(kind)}
    if kind is RLRecipe:  # sections of training stand in its guide; here, what is another default
        same = dict(of_recipe(Recipe))
        shared = {"model", "optimizer", "schedule", "parallel", "lora", "run"}
        actual = {k: v for k, v in actual.items() if k.split(".")[0] not in shared or plain(same[k]) != v}
    assert stated.keys() - actual.keys() == set(), "documented, but no key of a recipe"
    assert actual.keys() - stated.keys() == set(), "a key of a recipe, but not documented"
    assert {key: value for key, value in stated.items() if value != actual[key]} == {}, "another default in the code"
    numbers = {key for key, value in actual.items() if type(value) is not type(stated[key])}
    assert not numbers, "an integer where the code has a float, or the reverse"


def test_every_sampling_field_stands_in_its_guide_with_its_default() -> None:
    page = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    stated = {name: ast.literal_eval(default) for name, default in rows}
    assert len(stated) == len(rows), "a field stands there twice"
    assert stated == {field.name: field.default for field in fields(SamplingParams)}


def test_every_metric_stands_in_the_guide(tmp_path: Path) -> None:
    cells = "".join(re.findall(r"^\|([^|]+)\|", section("metrics.jsonl"), re.MULTILINE))
    documented = set(re.findall(r"`([a-z_]+)`", cells))
    options = ("objective.confidence=0.1", "objective.balance_weight=0.01")
    names = train_step(open_run(tiny_recipe(tmp_path, *options))).keys()
    pairs = PreferenceObjective(PreferenceConfig(), 1, 32, None)
    sums = "preference chosen margin won chosen_reward rejected_reward".split()
    names |= pairs.report(dict.fromkeys(sums, 0.0), dict.fromkeys(["pairs", "chosen"], 1.0)).keys()
    assert documented == names


def test_the_rows_of_the_guide_are_good_rows() -> None:
    lines = re.findall(r"```json\n(.*?)```", section("Data"), re.S)[0].splitlines()
    renderer = Renderer(Tokenizer.load(checkpoint_folder("redraft-nano")), 1024)
    kinds = []
    for line in lines:
        raw = json.loads(line)
        kinds.append(kind_of(raw))
        row = parse(raw, kinds[-1])
        if isinstance(row, Preference):
            assert len(renderer.pair(row, 0)) > 0
        else:
            assert all(sample.supervised.any() for sample in renderer.documents(row, 0))
    assert kinds == ["messages", "messages", "prompt/completion", "text", "preference"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_is_read_and_stands_in_its_guide(path: Path) -> None:
    reinforced = "environment" in yaml.safe_load(path.read_text(encoding="utf-8"))
    load_as(RLRecipe if reinforced else Recipe, path)
    assert f"`{path.name}`" in section("One run", RL_GUIDE if reinforced else GUIDE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_recipes_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"redraft (?:train|rl) ([\w./-]+\.yaml)", text):
        assert (ROOT / "recipes" / Path(name).name).exists(), name


def trees() -> list[tuple[str, list[tuple[int, str]]]]:
    """The trees of docs/structure.md: the folder at the top, and (depth, name) of what stands below it."""
    found = []
    for block in re.findall(r"```\n(src/redraft/.*?)```", STRUCTURE, re.S):
        top, *lines = block.splitlines()
        entries = [(len(line) - len(line.lstrip())) // 2 for line in lines]
        found.append((top.strip(), [(depth, line.split()[0]) for depth, line in zip(entries, lines, strict=True)]))
    return found


def test_the_trees_of_structure_name_what_is_there() -> None:
    packages, *inner = trees()
    named = {name.rstrip("/") for depth, name in packages[1] if depth == 1}
    source = ROOT / packages[0]
    there = {path.name for path in source.iterdir() if not path.name.startswith("_")}
    assert named == there
    for depth, name in packages[1]:
        assert depth or (ROOT / name).exists(), name
    detailed = ("engine", "server", "training", "rl", "eval")
    assert {top for top, _ in inner} == {f"src/redraft/{name}/" for name in detailed}
    for top, entries in inner:
        folder, paths, inside = ROOT / top, set(), ""
        for depth, name in entries:
            inside = inside if depth == 2 else name if name.endswith("/") else ""
            if not name.endswith("/"):
                paths.add(inside + name)
        files = [path for path in folder.rglob("*.*") if path.suffix in SHOWN and not path.name.startswith("_")]
        actual = {str(path.relative_to(folder)) for path in files}
        assert paths == actual, top
