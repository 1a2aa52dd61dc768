"""The loop of reinforcement learning: that of training, with its own step and picture."""

from __future__ import annotations

from pathlib import Path

from redraft.rl.build import open_rl_run
from redraft.rl.picture import draw_rewards
from redraft.rl.recipe import RLRecipe
from redraft.rl.step import rl_step
from redraft.training.loop import Evaluate, Report, run_to_end


def reinforce(
    recipe: RLRecipe, *, resume: bool = True, report: Report | None = None, evaluate: Evaluate | None = None
) -> Path:
    """Runs a recipe to its end and exports the model; returns the exported folder. Resumes, reports, evaluates, stops
    and fails as `training.loop.train` does.

    Rollouts and updates take turns in one process, so that every answer is written by the weights that learn from it,
    or with `workers.count` go on at the same time.
    """
    run = open_rl_run(recipe, resume=resume)
    try:
        return run_to_end(run, rl_step, report=report, evaluate=evaluate, draw=draw_rewards)
    finally:
        run.close()
