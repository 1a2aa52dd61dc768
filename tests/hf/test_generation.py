"""The public `generate`: golden answers, inputs, settings, and diffusers' pipeline on our forward."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.llada2.pipeline_llada2 import LLaDA2Pipeline
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler
from transformers import AutoModelForCausalLM, BatchEncoding

import redraft  # noqa: F401  (registers the classes)
from redraft.errors import ContextLengthError, InvalidInput
from redraft.hf.modeling import LLaDA2MoeModelLM
from redraft.model.network import LLaDA2

NEVER = -1  # an EOS id that no model proposes


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 380, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model() -> Any:
    return load(Path(__file__).parents[1] / "golden" / "seed0")


@pytest.mark.parametrize("seed", ["seed0", "seed3"])
def test_golden_answers_in_no_more_forwards(golden: Path, seed: str) -> None:
    folder = golden.parent / seed
    stored = json.loads((folder / "generate.json").read_text())
    model = load(folder)
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    model.model.register_forward_hook(count)
    for case in stored["cases"]:
        arguments = {k: v for k, v in case.items() if k not in ("prompt", "output", "forwards")}
        forwards = 0
        out = model.generate(inputs=torch.tensor([case["prompt"]]), mask_id=stored["mask_id"], **arguments)
        assert out.shape[0] == 1 and out.dtype == torch.int64
        assert out[0].tolist() == case["output"]
        assert forwards <= case["forwards"]


def test_public_defaults() -> None:
    parameters = inspect.signature(LLaDA2MoeModelLM.generate).parameters
    public = {
        "temperature": 0.0,
        "steps": 32,
        "gen_length": 2048,
        "top_p": None,
        "top_k": None,
        "eos_early_stop": False,
        "minimal_topk": 1,
        "threshold": 0.95,
        "editing_threshold": 0.9,
        "max_post_steps": 16,
        "num_to_transfer": 1,
    }
    assert {name: parameters[name].default for name in public} == public
    assert {"inputs", "block_length", "eos_id", "mask_id"} <= parameters.keys()


def test_ids_and_block_length_come_from_the_checkpoint(golden: Path) -> None:
    model = load(golden)
    model.config.block_length = 8
    stated = model.generate(prompt(20), gen_length=24, eos_id=382, mask_id=383, block_length=8)
    assert torch.equal(model.generate(prompt(20), gen_length=24), stated)
    whole = model.generate(prompt(20), gen_length=24, eos_id=NEVER)[0].tolist()
    third = whole[2]
    model.generation_config.eos_token_id = [third, 382]
    cut = model.generate(prompt(20), gen_length=24)[0].tolist()
    assert cut == whole[: whole.index(third) + 1]
    assert model.generate(prompt(20), gen_length=24, eos_id=[third])[0].tolist() == cut


def test_each_row_is_decoded_alone(model: Any) -> None:
    alone = [model.generate(prompt(length, length), gen_length=20) for length in (20, 9)]
    ids = torch.full((2, 20), 382)
    mask = torch.zeros_like(ids)
    ids[0], mask[0] = prompt(20, 20), 1
    ids[1, 11:], mask[1, 11:] = prompt(9, 9), 1
    encoding = BatchEncoding({"input_ids": ids, "attention_mask": mask})
    for out in (
        model.generate(encoding, gen_length=20),
        model.generate(inputs=ids, attention_mask=mask, gen_length=20),
        model.generate(**encoding, token_type_ids=torch.zeros_like(ids), gen_length=20),
    ):
        for row, expected in zip(out, alone, strict=True):
            assert row[: expected.shape[1]].tolist() == expected[0].tolist()
            assert set(row[expected.shape[1] :].tolist()) <= {model.config.pad_token_id}


def test_sampling_follows_the_seed_and_the_default_generator(model: Any) -> None:
    settings = {"gen_length": 32, "temperature": 1.5, "threshold": 0.0, "editing_threshold": 0.9}
    greedy = model.generate(prompt(8), gen_length=32, threshold=0.0)
    seeded = [model.generate(prompt(8), seed=5, **settings) for _ in range(2)]
    assert torch.equal(*seeded) and not torch.equal(seeded[0], greedy)
    torch.manual_seed(7)
    first = model.generate(prompt(8), **settings)
    second = model.generate(prompt(8), **settings)
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    assert torch.equal(model.generate(prompt(8), **settings), first)


def test_editing_is_off_at_one_and_above(model: Any) -> None:
    outs = [
        model.generate(prompt(8), gen_length=40, threshold=0.1, editing_threshold=value)
        for value in (1, 1.5, None, "off")
    ]
    assert all(torch.equal(outs[0], out) for out in outs)
    free = model.generate(prompt(8), gen_length=40, threshold=0.1, editing_threshold=0)
    assert not torch.equal(outs[0], free)


def test_generate_keeps_the_training_mode(golden: Path) -> None:
    model = load(golden).train()
    model.generate(prompt(4), gen_length=4)
    assert model.training and model.model.training


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_new_tokens": 5}, "max_new_tokens"),
        ({"do_sample": True}, "do_sample"),
        ({"custom_generate": "somewhere"}, "custom_generate"),
        ({"steps": 8}, "steps"),
        ({"minimal_topk": 4}, "minimal_topk"),
        ({"eos_early_stop": "yes"}, "eos_early_stop"),
        ({"gen_length": 0}, "gen_length"),
        ({"num_to_transfer": 0}, "num_to_transfer"),
        ({"editing_threshold": -0.1}, "editing_threshold"),
        ({"editing_threshold": True}, "editing_threshold"),
        ({"threshold": -1}, "threshold"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"block_length": 0}, "block_length"),
        ({"mask_id": 384}, "mask_id"),
        ({"mask_id": 1.5}, "mask_id"),
        ({"eos_id": "x"}, "eos_id"),
        ({"input_ids": prompt(3)}, "input_ids"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask"),
        ({"inputs": "text"}, "inputs"),
        ({"inputs": torch.zeros(4, dtype=torch.long)}, "inputs"),
        ({"inputs": torch.zeros(1, 4)}, "inputs"),
        ({"inputs": torch.zeros(1, 0, dtype=torch.long)}, "prompt 0 is empty"),
        ({"inputs": torch.full((1, 4), 400)}, "400"),
    ],
)
def test_generate_refuses_by_name(model: Any, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        model.generate(**({"inputs": prompt(4), "gen_length": 4} | arguments))


def test_over_the_context_is_an_error_that_names_both(model: Any) -> None:
    with pytest.raises(ContextLengthError, match=r"4 tokens and max_tokens 4096"):
        model.generate(prompt(4), gen_length=4096)


def test_repetition_penalty_is_refused(golden: Path) -> None:
    model = load(golden)
    model.generation_config.repetition_penalty = 1.2
    with pytest.raises(InvalidInput, match="repetition_penalty"):
        model.generate(prompt(4), gen_length=4)


@pytest.mark.parametrize(
    ("length", "gen", "threshold", "editing", "spare"),
    [(64, 32, 0.3, 0.5, 0), (50, 46, 0.3, 0.5, 0), (37, 59, 2.0, 0.9, 0), (50, 46, 0.7, 0.5, 1), (64, 32, 0.3, 0.2, 1)],
)
def test_pipeline_of_diffusers_gives_our_tokens(
    model: Any, length: int, gen: int, threshold: float, editing: float, spare: int
) -> None:
    """Where the two define the same: one row, whole blocks, a step for each token of a block, editing, no early stop.

    Two limits of the pipeline lie one step apart from ours, so where a case reaches them it gets one step more or less
    (`spare`): a block that took all steps to draft is not edited afterwards, and one post step more is run.
    """
    pipe: Any = LLaDA2Pipeline(model=model, scheduler=BlockRefinementScheduler())
    pipe.set_progress_bar_config(disable=True)
    sequences = pipe(
        input_ids=prompt(length),
        gen_length=gen,
        block_length=32,
        num_inference_steps=32 + spare,
        threshold=threshold,
        editing_threshold=editing,
        max_post_steps=16 - spare,
        eos_early_stop=False,
        mask_token_id=383,
        output_type="seq",
    ).sequences
    ours = model.generate(
        prompt(length), gen_length=gen, block_length=32, threshold=threshold, editing_threshold=editing, eos_id=NEVER
    )
    assert torch.equal(sequences, ours)


def test_network_sees_only_what_it_needs(model: Any) -> None:
    """The cache is used: after the prefill a forward reads one block, never the whole sequence."""
    lengths: list[int] = []
    handle = model.model.register_forward_pre_hook(lambda _, arguments: lengths.append(arguments[0].shape[1]))
    model.generate(prompt(100), gen_length=60, eos_id=NEVER)
    handle.remove()
    assert isinstance(model.model, LLaDA2)
    assert lengths[0] == 128 and max(lengths[1:]) <= 64
