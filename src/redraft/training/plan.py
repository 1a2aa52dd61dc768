"""What a recipe needs on each GPU, worked out on the meta device before anyone pays for it.

Sizes of weights are exact; those of activations are counted tensor by tensor, as the network's layers keep them for
the backward pass with torch's fused attention and grouped products (tests/training/test_plan.py counts them again on a
real layer). Not counted: the CUDA context and NCCL (about 2 GB, `RESERVE`), fragmentation, and uneven routing, which
gives a process more than its share of the rows under expert parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from redraft.errors import ConfigError
from redraft.kernels.cross_entropy import LOGITS
from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2
from redraft.training.lora import add_lora
from redraft.training.parallel import ParallelConfig
from redraft.training.recipe import Recipe

GB = 1e9
RESERVE = 2 * GB
WEIGHT = 4  # bytes of a weight, its gradient and each of the optimiser's numbers


@dataclass(frozen=True)
class Plan:
    """Bytes on one GPU by part. parameters, active: of the whole model, and those that a token meets.

    Weights, gradients and optimiser are always there: gradients and optimiser of what is trained, weights also of the
    frozen reference that preference training without adapters compares with. During forward and backward `gathered`
    (weights and gradients of the layers at work, in the computing dtype), `activations` and `logits` come on top;
    during the update `update`. With adapters the parts of a forward are upper bounds, those of a run that trains
    everything.
    """

    gpus: int
    gpu_memory: float
    parallel: ParallelConfig
    positions: int
    parameters: int
    active: int
    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    update: float

    @property
    def total(self) -> float:
        """The highest point of a step, with the reserve."""
        passing = max(self.gathered + self.activations + self.logits, self.update)
        return self.weights + self.gradients + self.optimizer + passing + RESERVE

    @property
    def fits(self) -> bool:
        return self.total <= self.gpu_memory


def plan(recipe: Recipe, gpus: int, gpu_memory: float) -> Plan:
    """The memory of `recipe` on `gpus` GPUs of `gpu_memory` bytes, computing in bfloat16 unless `run.precision` says
    float32. Raises ConfigError where the layout doesn't divide."""
    if gpus < 1 or not gpu_memory > 0:
        raise ConfigError(f"a plan needs at least 1 GPU with some memory, got {gpus} with {gpu_memory / GB:g} GB")
    config, parallel = model_config(recipe), recipe.parallel
    parallel.check(gpus, config.num_experts if config.num_moe_layers else 0)
    model = LLaDA2(config, device="meta")
    plain = sum(_held(name, p.numel(), gpus, parallel) for name, p in model.named_parameters())
    if recipe.lora:
        add_lora(model, recipe.lora)
    number = 4 if recipe.run.precision == "float32" else 2
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    held = {name: _held(name, size, gpus, parallel) for name, size in sizes.items()}
    on_gpu = sum(held.values())
    trained = sum(held[name] for name, p in model.named_parameters() if p.requires_grad)
    reference = plain if recipe.objective.kind == "preference" and not recipe.lora else 0.0
    matrices = model.named_parameters() if recipe.optimizer.kind == "muon" else ()
    hidden = sum(held[name] for name, p in matrices if _is_hidden(name, p))
    positions = recipe.batch.length * (1 + recipe.objective.copies)
    experts = sum(size for name, size in sizes.items() if _of_experts(name))
    share = config.num_experts_per_tok / config.num_experts if config.num_moe_layers else 0.0
    return Plan(
        gpus=gpus,
        gpu_memory=gpu_memory,
        parallel=parallel,
        positions=positions,
        parameters=sum(sizes.values()),
        active=round(sum(sizes.values()) - experts * (1 - share)),
        weights=WEIGHT * (on_gpu + reference),
        gradients=WEIGHT * trained,
        optimizer=WEIGHT * (2 * trained - hidden),
        gathered=_gathered(model, sizes, gpus, parallel, number),
        activations=activations(config, positions, number, recompute=parallel.recompute),
        logits=3 * WEIGHT * min(LOGITS, positions * config.vocab_size),
        # AdamW works on lists with one temporary of their size; Muon keeps the update of every matrix, and of the
        # largest the terms of its iteration.
        update=WEIGHT * (trained - hidden + 2 * hidden),
    )


def both(recipe: Recipe, gpus: int, gpu_memory: float) -> list[Plan]:
    """The plan without and with recomputing of activations."""
    kinds = [replace(recipe.parallel, recompute=recompute) for recompute in (False, True)]
    return [plan(replace(recipe, parallel=parallel), gpus, gpu_memory) for parallel in kinds]


def model_config(recipe: Recipe) -> ModelConfig:
    """Of the checkpoint that the recipe starts from where it is there, else of the recipe's own fields."""
    if recipe.start and (Path(recipe.start) / "config.json").exists():
        return ModelConfig.from_json(recipe.start)
    return ModelConfig(**recipe.model, vocab_size=recipe.tokenizer.vocab_size)


def activations(config: ModelConfig, positions: int, number: int, *, recompute: bool) -> float:
    """Bytes kept for the backward pass, behind all layers; with `recompute` the layers' inputs and one layer."""
    layers = [_layer(config, layer, number) for layer in range(config.num_hidden_layers)]
    ends = (
        _norm(config.hidden_size, number) + 2 * max(WEIGHT, number) * config.rotary_dim
    )  # of the last norm; rotations
    inside = max(layers) + number * config.hidden_size * len(layers) if recompute else sum(layers)
    return positions * (inside + ends)


def _layer(config: ModelConfig, layer: int, number: int) -> float:
    """Bytes a position that a layer keeps: `number` for each in the computing dtype, 4 (or `number`) where float32 is
    forced."""
    wide = max(WEIGHT, number)
    c, d = config.hidden_size, config.head_dim
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    norm = _norm(c, number) + number * c  # and its output, which the projections keep
    turned = heads + groups
    attention = turned * _norm(d, number) if config.use_qk_norm else 0
    # Queries, keys, values and the output of the attention, and that output once more, flattened.
    attention += number * d * (heads + 2 * groups + heads) + wide * heads
    if not config.is_moe(layer):
        return 2 * norm + attention + number * 4 * config.intermediate_size
    k, f, experts = config.num_experts_per_tok, config.moe_intermediate_size, config.num_experts
    router = (wide * c if number < wide else 0) + wide * (experts + 3 * k) + 8 * 4 * k
    routed = k * number * (2 * c + 4 * f)
    shared = number * 4 * f * config.num_shared_experts
    return 2 * norm + attention + router + routed + shared


def _norm(size: int, number: int) -> float:
    """Bytes that RMSNorm keeps: its input, as wide as it computes in, and its output before the weight."""
    return (max(WEIGHT, number) + number) * size


def _held(name: str, size: int, gpus: int, parallel: ParallelConfig) -> float:
    """Numbers of a parameter on one GPU."""
    if parallel.data == "shard":
        return size / gpus
    return size / parallel.experts if _of_experts(name) else size


def _gathered(model: LLaDA2, sizes: dict[str, int], gpus: int, parallel: ParallelConfig, number: int) -> float:
    """FSDP2 at its widest: root and two layers whole (one at work, one ahead), their gradients, and a layer's and the
    root's as they are summed, in float32. Copies kept whole are cast instead: each dense matrix once."""
    if parallel.data == "replicate":
        dense = sum(size for name, size in sizes.items() if not _of_experts(name))
        return number * dense if number < WEIGHT else 0.0
    if gpus == 1:
        return 0.0
    layers = [0.0] * len(model.layers)
    for name, size in sizes.items():
        if name.startswith("layers."):
            layers[int(name.split(".")[1])] += size / (parallel.experts if _of_experts(name) else 1)
    root = sum(size for name, size in sizes.items() if not name.startswith("layers."))
    largest = max(layers)
    return number * (2 * root + 3 * largest) + WEIGHT * max(largest, root)


def _of_experts(name: str) -> bool:
    return ".mlp.experts." in name


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim >= 2 and name.startswith("layers.") and ".gate.weight" not in name
