"""The four decoders that are compared, behind one face: run, and say how long each denoising step took.

All decode the same way: greedy, `per_step` positions a step whatever their confidence, no editing. So all of them do
the same forwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from diffusers.pipelines.llada2.pipeline_llada2 import LLaDA2Pipeline
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler

from bench.baseline import PublicDecoder
from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.hf.configuration import LLaDA2MoeConfig
from redraft.hf.modeling import LLaDA2MoeModelLM
from redraft.model.network import LLaDA2
from redraft.types import OFF, SamplingParams

NEVER = 2.0  # a threshold that no probability passes


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step: its time, and the block's tokens after it."""

    seconds: float
    tokens: tuple[int, ...]


class System(Protocol):
    """recomputes: every forward reads the whole sequence, so that all forwards of a block cost the same."""

    name: str
    recomputes: bool

    def run(self, prompt: Sequence[int], new_tokens: int, limit: int | None = None) -> list[Step]:
        """Decodes new_tokens tokens (whole blocks) after the prompt (whole blocks), or only the first `limit` steps."""
        ...


class Ours:
    """The package's decoder: with its cache, or reading the whole sequence at every step."""

    def __init__(self, network: LLaDA2, mask_id: int, per_step: int, *, cached: bool) -> None:
        self.name = "cached" if cached else "uncached"
        self.recomputes = not cached
        self._per_step = per_step
        # Every run reads its prompt, also when the last one had the same.
        self._llm = LLM.from_model(network, control=ControlIds(mask_id), use_cache=cached, prefix_cache=False)

    def run(self, prompt: Sequence[int], new_tokens: int, limit: int | None = None) -> list[Step]:
        params = SamplingParams(
            threshold=NEVER, edit_threshold=OFF, min_unmask=self._per_step, max_tokens=new_tokens, ignore_eos=True
        )
        return timed((event.tokens for event in self._llm.stream(list(prompt), params)), limit)


class Public:
    """Full recomputation and the expert-by-expert loop, as the published `generate` does it."""

    name = "baseline"
    recomputes = True

    def __init__(self, network: LLaDA2, mask_id: int, per_step: int) -> None:
        self._decoder = PublicDecoder(network, mask_id)
        self._per_step = per_step

    def run(self, prompt: Sequence[int], new_tokens: int, limit: int | None = None) -> list[Step]:
        return timed(self._decoder.steps(prompt, new_tokens, self._per_step), limit)


class Diffusers:
    """The pipeline of diffusers on our transformers model."""

    name = "diffusers"
    recomputes = True

    def __init__(self, network: LLaDA2, mask_id: int, per_step: int) -> None:
        self._mask_id = mask_id
        self._length = network.config.block_length
        self._steps = -(-self._length // per_step)
        model = LLaDA2MoeModelLM(LLaDA2MoeConfig(**network.config.to_dict()), network).eval()
        self._pipe: Any = LLaDA2Pipeline(model=model, scheduler=BlockRefinementScheduler())
        self._pipe.set_progress_bar_config(disable=True)

    def run(self, prompt: Sequence[int], new_tokens: int, limit: int | None = None) -> list[Step]:
        steps: list[Step] = []
        started = perf_counter()

        def on_step_end(_pipe: Any, _step: int, _timestep: int, values: dict[str, Any]) -> dict[str, Any]:
            nonlocal started
            seconds = perf_counter() - started
            steps.append(Step(seconds, tuple(values["block_x"][0, -self._length :].tolist())))
            if len(steps) == limit:
                raise _Enough
            started = perf_counter()
            return values

        with contextlib.suppress(_Enough):
            self._pipe(
                input_ids=torch.tensor([list(prompt)]),
                gen_length=new_tokens,
                block_length=self._length,
                num_inference_steps=self._steps,
                threshold=NEVER,
                editing_threshold=None,
                eos_early_stop=False,
                mask_token_id=self._mask_id,
                output_type="seq",
                callback_on_step_end=on_step_end,
            )
        return steps


class _Enough(Exception):
    """Leaves the pipeline, which has no other way out, after the steps that were asked for."""


def timed(states: Iterable[tuple[int, ...]], limit: int | None) -> list[Step]:
    """Times the steps of an iterator that takes one a turn."""
    steps: list[Step] = []
    started = perf_counter()
    for tokens in states:
        steps.append(Step(perf_counter() - started, tokens))
        if len(steps) == limit:
            break
        started = perf_counter()
    return steps


def build(network: LLaDA2, mask_id: int, per_step: int) -> list[System]:
    """All systems on one network, the cached decoder first."""
    return [
        Ours(network, mask_id, per_step, cached=True),
        Ours(network, mask_id, per_step, cached=False),
        Public(network, mask_id, per_step),
        Diffusers(network, mask_id, per_step),
    ]
