"""What `redraft train` evaluates a model by while it trains: its answers, or its likelihood of held-out rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from redraft.model.network import LLaDA2
    from redraft.text.tokenizer import Tokenizer
    from redraft.training.loop import Evaluate
    from redraft.training.recipe import Recipe
    from redraft.types import Sample

MEASURES = ("accuracy", "tokens_per_forward", "edits_per_100_tokens")


def evaluator(recipe: Recipe) -> Evaluate | None:
    """The evaluation that a recipe asks for. Raises ConfigError for a file of rows that isn't there."""
    if not recipe.run.evaluate_every:
        return None
    if recipe.run.evaluate_data and not Path(recipe.run.evaluate_data).is_file():
        raise ConfigError(f"run.evaluate_data must be a file of rows, got {recipe.run.evaluate_data!r}")
    if recipe.run.evaluate == "skills":
        return by_skills(recipe.run.evaluate_items, tuple(recipe.data.skills))
    return by_elbo(recipe)


def by_skills(items: int, skills: tuple[str, ...] = ()) -> Evaluate:
    """Accuracy and speed on about `items` held-out items of these skills (of all, if none is named) at quality (Q) and
    speed (S); the score: the mean accuracy."""

    def evaluate(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        from redraft.engine.llm import LLM
        from redraft.eval.quick import quick_accuracy

        results = quick_accuracy(LLM.from_model(model, tokenizer), items, skills=skills)
        score = sum(result["accuracy"] for result in results.values()) / len(results)
        values = {f"{label}_{name}": result[name] for label, result in results.items() for name in MEASURES}
        of_skills = {
            f"{label}_{name}": value
            for label, result in results.items()
            for name, value in result.items()
            if name not in MEASURES
        }
        return {"score": score, **values, **of_skills}

    return evaluate


def by_elbo(recipe: Recipe) -> Evaluate:
    """The likelihood bound on held-out rows in bits per learnt token, lower is better, with the standard error of its
    masks; the score is its negative. The EOS that fill a last block count as bits, as in `redraft eval elbo`. The masks
    are the same each time, so that two checkpoints differ by their weights alone."""
    rows: list[Sample] = []

    def evaluate(model: LLaDA2, tokenizer: Tokenizer) -> dict[str, float]:
        from redraft.training.likelihood import Estimator, estimate

        mask = tokenizer.mask_id
        if mask is None:
            raise ConfigError("the tokenizer names no mask token; an evaluation by run.evaluate=elbo needs one")
        if not rows:
            rows.extend(held_out(recipe, tokenizer, model.config.max_position_embeddings))
        estimator = Estimator(block_length=model.config.block_length, mask_id=mask, eos_ids=tokenizer.eos_ids)
        estimates = estimate(model, rows, estimator)
        per_token = math.log(2) * sum(int(row.supervised.sum()) for row in rows)
        bits = -sum(each.elbo for each in estimates) / per_token
        error = math.sqrt(sum(each.error**2 for each in estimates)) / per_token
        return {"score": -bits, "bits": bits, "bits_error": error}

    return evaluate


def held_out(recipe: Recipe, tokenizer: Tokenizer, context: int) -> list[Sample]:
    """The first rows of `run.evaluate_data`, or held-out items of the recipe's skills with their answers."""
    from redraft.eval.skills import draw_tasks
    from redraft.skills import SKILLS
    from redraft.training.data import DataConfig, SourceConfig, open_source
    from redraft.training.data.documents import Renderer
    from redraft.training.data.rows import BadRow, Chat

    count, longest = recipe.run.evaluate_items, min(recipe.data.max_length, context)
    if recipe.run.evaluate_data:
        source = SourceConfig(path=recipe.run.evaluate_data)
        data = DataConfig(sources=(source,), shuffle=False, max_length=longest, bad_rows=recipe.data.bad_rows)
        opened = open_source(data, tokenizer, seed=0, total=count)
        samples = [s for i in range(min(count, opened.rows or count)) for s in opened.documents(i)]
    else:
        skills = {name: SKILLS[name] for name in recipe.data.skills} or SKILLS
        renderer, samples = Renderer(tokenizer, longest), []
        for index, (task, _) in enumerate(draw_tasks(0, max(1, count // len(skills)), "seen", skills)):
            messages = [*task.messages, {"role": "assistant", "content": task.answer}]
            try:
                samples += renderer.documents(Chat(messages, list(task.tools) or None, (len(messages) - 1,)), index)
            except BadRow:
                continue  # as in training, what is longer than data.max_length is left out
    if not samples:
        raise InvalidInput(f"no held-out row has at most {longest} tokens; raise data.max_length")
    return samples
