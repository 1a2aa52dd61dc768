"""A light check of a model while it trains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from redraft.engine.llm import LLM
from redraft.eval.settings import QUALITY, SPEED, Setting
from redraft.eval.skills import Answerer, answer, draw_items
from redraft.eval.statistics import summarise
from redraft.skills import SKILLS


def quick_accuracy(
    model: Answerer | str | Path,
    n: int = 60,
    seed: int = 0,
    settings: Sequence[Setting] = (QUALITY, SPEED),
    skills: Collection[str] = (),
) -> dict[str, dict[str, float]]:
    """Accuracy and speed on about `n` held-out items of seen compositions, the skills in equal shares.

    model: an LLM (or `LLM.from_model` of the network in training), or a checkpoint folder. skills: their names; none
    takes all. Returns, by the label of
    each setting: "accuracy", "tokens_per_forward", "edits_per_100_tokens", and each skill's accuracy by its name.
    """
    llm = LLM(model, device="cpu") if isinstance(model, (str, Path)) else model
    chosen = {name: SKILLS[name] for name in SKILLS if not skills or name in skills}
    items = draw_items(seed, max(1, n // len(chosen)), "seen", chosen)
    records = [record for item in items for record in answer(llm, "", item, settings)]
    result = {}
    for setting in settings:
        mine = [record for record in records if record.setting == setting.key]
        summary = summarise(mine)
        result[setting.label] = {
            "accuracy": summary.accuracy.value,
            "tokens_per_forward": summary.tokens_per_forward,
            "edits_per_100_tokens": summary.edits_per_100_tokens,
        } | {skill: summarise([record for record in mine if record.skill == skill]).accuracy.value for skill in chosen}
    return result
