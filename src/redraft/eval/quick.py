"""A light check of a model while it trains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from redraft.engine.llm import LLM
from redraft.eval.answer import Answerer, LocalModel
from redraft.eval.runner import Job, in_batches
from redraft.eval.settings import QUALITY, SPEED, Setting
from redraft.eval.skills import SkillSuite
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
    takes all. Returns, by the label of each setting: "accuracy", "tokens_per_forward", "edits_per_100_tokens", and each
    skill's accuracy by its name.
    """
    llm = LLM(model, device="cpu") if isinstance(model, (str, Path)) else model
    chosen = tuple(name for name in SKILLS if not skills or name in skills)
    suite = SkillSuite(seed, max(1, n // len(chosen)), "seen", chosen)
    jobs = [Job(item, tuple(settings)) for item in suite.items()]
    records = [record for part in in_batches(LocalModel(llm, ""), suite)(jobs) for record in part]
    result = {}
    for setting in settings:
        mine = [record for record in records if record.setting == setting.key]
        summary = summarise(mine)
        result[setting.label] = {
            "accuracy": summary.accuracy.value,
            "tokens_per_forward": summary.tokens_per_forward,
            "edits_per_100_tokens": summary.edits_per_100_tokens,
        } | {skill: summarise([record for record in mine if record.task == skill]).accuracy.value for skill in chosen}
    return result
