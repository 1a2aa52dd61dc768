"""How noisy the estimates of a response's bound are, and of its change: `python -m bench.elbo_variance`.

redraft-nano on right answers to held-out prompts. Standard deviations in nats a token, over draws of the noise,
averaged over the responses. The change is that to a copy whose weights were moved by 1% of each tensor's spread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from redraft.eval.skills import draw_tasks
from redraft.model.checkpoint import load_model
from redraft.model.folder import checkpoint_folder
from redraft.model.network import LLaDA2
from redraft.rl.composite import LikelihoodConfig, composite
from redraft.rl.likelihood import likelihood
from redraft.text.tokenizer import Tokenizer
from redraft.training.data.documents import Renderer
from redraft.training.data.rows import Chat
from redraft.training.layout import lay_out
from redraft.training.likelihood import document_elbo
from redraft.training.noise import NoiseConfig, add_noise
from redraft.training.objective import Draws
from redraft.types import Sample

RESPONSES, ROUNDS, LEVELS = 6, 24, (1, 4)
Estimate = Callable[[LLaDA2, int, int], np.ndarray]
"""(model, round, levels) -> the bound of each response in nats a token."""


def documents(tokenizer: Tokenizer) -> list[Sample]:
    renderer = Renderer(tokenizer, 512)
    out = []
    for index, item in enumerate(draw_tasks(0, 1, "seen")[:RESPONSES]):
        messages = [*item.task.messages, {"role": "assistant", "content": item.task.answer}]
        out += renderer.documents(Chat(messages, list(item.task.tools) or None, (len(messages) - 1,)), index)
    return out


def estimators(samples: list[Sample], draws: Draws) -> dict[str, Estimate]:
    lengths = np.array([int(sample.supervised.sum()) for sample in samples])

    def ours(noise: str) -> Estimate:
        def estimate(model: LLaDA2, round_: int, levels: int) -> np.ndarray:
            config = LikelihoodConfig(levels=levels, noise=noise)
            batch = composite(samples, config, replace(draws, step=round_))
            return likelihood(model, batch).by_document.numpy() / lengths

        return estimate

    def independent(model: LLaDA2, round_: int, levels: int) -> np.ndarray:
        alone = ours("random")
        return np.mean([alone(model, 1000 + round_ * levels + level, 1) for level in range(levels)], axis=0)

    def over_t(model: LLaDA2, round_: int, levels: int) -> np.ndarray:
        layout = lay_out(samples, draws.block_length, draws.eos_ids, copies=levels)
        plain = NoiseConfig(ratio_min=0.0, full=0.0, replace_max=0.0)
        where = {"seed": draws.seed, "step": round_, "mask_id": draws.mask_id, "replacements": draws.replacements}
        return document_elbo(model, layout, add_noise(layout, plain, **where)).numpy() / lengths  # type: ignore[arg-type]

    return {
        "a ratio t for each block, weight 1/t": over_t,
        "k of n masked, levels independent": independent,
        "k of n masked, one level a copy": ours("sequence"),
        "k of n masked, levels stratified": ours("random"),
    }


@torch.no_grad()
def main() -> None:
    folder = checkpoint_folder("redraft-nano")
    tokenizer = Tokenizer.load(folder)
    old = load_model(folder, dtype=torch.float32).eval()
    new = copy.deepcopy(old)
    generator = torch.Generator().manual_seed(0)
    for parameter in new.parameters():
        parameter += 0.01 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    config = old.config
    assert config.mask_token_id is not None
    draws = Draws(0, 0, config.mask_token_id, tokenizer.eos_ids, config.block_length, np.arange(100, 2000))
    print(f"{'noise':38} {'N':>2} {'bound':>8} {'change, shared noise':>21} {'change, own noise':>18}")
    for name, estimate in estimators(documents(tokenizer), draws).items():
        for levels in LEVELS:
            before = np.stack([estimate(old, round_, levels) for round_ in range(ROUNDS)])
            after = np.stack([estimate(new, round_, levels) for round_ in range(ROUNDS)])
            shared, own = after - before, after - np.roll(before, 1, axis=0)
            figures = (values.std(axis=0, ddof=1).mean() for values in (before, shared, own))
            print(f"{name:38} {levels:2} {next(figures):8.3f} {next(figures):21.4f} {next(figures):18.3f}", flush=True)


if __name__ == "__main__":
    main()
