"""`redraft demo`: a few answers drafted and edited before your eyes, then held-out prompts graded in S and Q mode."""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli import options
from redraft.cli.session import Session
from redraft.errors import InvalidInput
from redraft.types import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.skills.base import Split, Task

MODES = ("speed", "quality")
FRAME_SECONDS = 0.12


@dataclass(frozen=True, slots=True)
class Score:
    """What a mode reached on the graded prompts; TPF and TPS are ratios of sums."""

    mode: str
    right: int
    prompts: int
    tokens_per_forward: float
    tokens_per_second: float
    edits: int


def demo(
    seed: Annotated[int | None, typer.Option("--seed", help="Draw these prompts again [default: new ones].")] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="Prompts to grade.")] = 20,
    shown: Annotated[int, typer.Option("--shown", help="Answers to show first.")] = 3,
    model: options.Model = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Show answers being drafted and edited, then grade held-out prompts in speed and quality mode.

    Example: redraft demo --seed 7 --prompts 50
    """
    if prompts < 1 or shown < 0:
        raise InvalidInput(f"prompts must be at least 1 and shown at least 0, got {prompts} and {shown}")
    from rich.console import Console

    seed = secrets.randbelow(10**6) if seed is None else seed
    tasks = held_out(seed, prompts)
    session = Session.load(model, device, dtype, threads)
    console = Console(highlight=False)
    if as_json:
        scores = [asdict(grade(session, tasks, mode)) for mode in MODES]
        typer.echo(json.dumps({"seed": seed, "scores": scores}))
        return
    console.print(f"seed {seed} (redraft demo --seed {seed} draws the same prompts)\n")
    for task in tasks[:shown]:
        if not _show(session, task, console):
            raise typer.Exit(options.INTERRUPTED)
    console.print(f"{prompts} held-out prompts: half of unseen values, half of unseen compositions")
    console.print("mode      right   TPF    TPS   edits", style="bold")
    for mode in MODES:
        score = grade(session, tasks, mode)
        console.print(
            f"{mode:8} {score.right:3}/{score.prompts:<3} {score.tokens_per_forward:5.2f} "
            f"{score.tokens_per_second:6.0f} {score.edits:6}"
        )


def held_out(seed: int, count: int) -> list[Task]:
    """Tasks that training never saw: the skills in turn, the splits "seen" and "test" in turn."""
    from redraft.skills import SKILLS

    rng = random.Random(seed)
    skills = list(SKILLS.values())
    rng.shuffle(skills)
    tasks = []
    for number in range(count):
        split: Split = "seen" if (number // len(skills) + number) % 2 == 0 else "test"
        tasks.append(skills[number % len(skills)].generate(rng, split))
    return tasks


def grade(session: Session, tasks: list[Task], mode: str) -> Score:
    """Answers all tasks in one mode and grades them."""
    from redraft.skills import SKILLS

    params = SamplingParams(mode=mode)
    completions = session.llm.generate([session.chat_ids(task.prompt, task.tools) for task in tasks], params)
    stats = [completion.stats for completion in completions]
    tokens = sum(item.generated_tokens for item in stats)
    right = sum(
        SKILLS[task.skill].grade(task, completion.text) == 1.0
        for task, completion in zip(tasks, completions, strict=True)
    )
    return Score(
        mode=mode,
        right=right,
        prompts=len(tasks),
        tokens_per_forward=tokens / sum(item.forwards for item in stats),
        tokens_per_second=tokens / sum(item.seconds for item in stats),
        edits=sum(item.edits for item in stats),
    )


def _show(session: Session, task: Task, console: Console) -> bool:
    """Shows one answer at a pace that can be followed; False when Ctrl-C ended it."""
    from redraft.cli.show import paced, show
    from redraft.cli.view import ViewState
    from redraft.skills import SKILLS

    state = ViewState(prompt=task.prompt, special_ids=session.tokenizer.special_ids)
    frames = session.frames(session.chat_ids(task.prompt, task.tools), SamplingParams(mode="speed"))
    if console.is_terminal:
        frames = paced(frames, speed=1.0, shortest=FRAME_SECONDS)
    else:
        console.print(task.prompt, markup=False)
    if not show(frames, state, console):
        return False
    verdict = "right" if SKILLS[task.skill].grade(task, state.text) == 1.0 else "wrong"
    console.print(f"graded {verdict} ({task.skill}, level {task.level})\n", style="dim")
    return True
