"""LoRA (Hu et al. 2021, arXiv 2106.09685) through PEFT: a frozen network with small trained factors beside it.

PEFT puts the layers in, names the tensors and defines the files, so that an adapter trained here is an adapter
anywhere. Packed experts get factors of their own each (`training/lora_experts.py`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.errors import CheckpointError, ConfigError
from redraft.model.network import Experts, LLaDA2
from redraft.model.precision import at_least_float32

# PEFT's names of what each target adapts, as ends of module names, and of parameters for the packed experts.
_MODULES = {
    "attention": ("attention.query_key_value", "attention.dense"),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "shared_experts": tuple(f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")),
}
_PARAMETERS = {"experts": ("mlp.experts.gate_up", "mlp.experts.down")}
_ROUTER = "mlp.gate"
TARGETS = (*_MODULES, *_PARAMETERS)


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """rank: of the factors, for packed experts of each expert. alpha: the update is scaled by alpha / rank. dropout:
    of the factors' inputs. targets: what is adapted, of "attention", "mlp" (dense layers), "shared_experts" and
    "experts"; those that the network lacks are passed over. train_router: train the routers too, as whole matrices,
    and balance their loads; otherwise both router and balance stay as they are."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = TARGETS
    train_router: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"lora.rank must be at least 1, got {self.rank}")
        if not self.alpha > 0:
            raise ConfigError(f"lora.alpha must be above 0, got {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"lora.dropout must be from 0 to below 1, got {self.dropout}")
        unknown = [target for target in self.targets if target not in TARGETS]
        if unknown or not self.targets:
            raise ConfigError(f"lora.targets must be some of {', '.join(TARGETS)}, got {list(self.targets)!r}")
        if self.dropout and "experts" in self.targets:
            raise ConfigError(
                f'lora.dropout must be 0 when lora.targets has "experts", got {self.dropout}: PEFT has none for them'
            )


def add_lora(model: LLaDA2, config: LoraConfig, *, seed: int = 0) -> LLaDA2:
    """Freezes `model` and puts adapters into it, in place; its outputs stay exactly what they were.

    The factors are float32 (float64 in a float64 model), whatever the weights are in; seed: of their first values.
    Raises ConfigError if the model has none of the targets, or has adapters already.
    """
    from peft import LoraConfig as PeftConfig

    _refuse_adapted(model)
    names = [name for name, _ in model.named_parameters()]
    modules = [end for t in config.targets for end in _MODULES.get(t, ()) if _has(names, f".{end}.weight")]
    parameters = [end for t in config.targets for end in _PARAMETERS.get(t, ()) if _has(names, f".{end}")]
    if not modules and not parameters:
        raise ConfigError(f"lora.targets {list(config.targets)!r} are not in this network")
    trained_whole = [_ROUTER] if config.train_router and _has(names, f".{_ROUTER}.weight") else None
    inject(
        model,
        PeftConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type]  (PEFT's annotation is narrower than what it does)
            lora_dropout=config.dropout,
            target_modules=modules,
            target_parameters=parameters,
            modules_to_save=trained_whole,
        ),
        seed=seed,
    )
    return model


def inject(model: LLaDA2, config: Any, *, seed: int = 0) -> None:
    """Puts in the adapters that a PEFT configuration describes, in place. Raises ConfigError if it does not fit."""
    from peft import inject_adapter_in_model

    from redraft.training.lora_experts import ParamWrapper

    _refuse_adapted(model)
    config._register_custom_module({Experts: ParamWrapper})
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.filterwarnings("ignore", "Unsupported layer type .*Experts", UserWarning)  # it is ours, registered
        try:
            inject_adapter_in_model(config, model)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"the adapter does not fit this network: {' '.join(str(error).split())}") from None
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(at_least_float32(parameter.dtype))


def is_adapted(model: torch.nn.Module) -> bool:
    """Whether the network holds adapters."""
    return hasattr(model, "peft_config")


def merge_lora(model: LLaDA2) -> LLaDA2:
    """Adds the adapters to the weights and takes them out, in place: a plain network with the plain tensor names.

    A network without adapters is returned as it is.
    """
    if not is_adapted(model):
        return model
    for name, module in adapter_modules(model).items():
        model.set_submodule(name, merged_module(module))
    del model.peft_config
    return model.requires_grad_(True)


def adapter_modules(model: LLaDA2) -> dict[str, Any]:
    """PEFT's modules in an adapted network by name, each with all that it wraps."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper))
        and not any(inside in name for inside in (".base_layer", ".original_module", ".modules_to_save"))
    }


def merged_module(module: Any) -> Any:
    """The plain module of one of PEFT's; stacked parameters and modules trained whole have a way of their own."""
    if hasattr(module, "unload_and_optionally_merge_module"):
        return module.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    module.merge()
    return module.get_base_layer()


def plain_name(name: str) -> str:
    """What the plain network calls a tensor that an adapted one keeps frozen."""
    return name.replace(".base_layer", "").replace(".original_module", "")


def checkpoint_names(model: LLaDA2) -> set[str]:
    """Names in `state_dict` that a checkpoint of a run must hold: what training changes, all of a plain network."""
    names = set(model.state_dict())
    if not is_adapted(model):
        return names
    return {name for name in names if ".lora_" in name or ".modules_to_save." in name}


def lora_state(model: LLaDA2) -> dict[str, Tensor]:
    """What training changes, by PEFT's names without the adapter's: "layers.1.attention.dense.lora_A.weight"."""
    from peft import get_peft_model_state_dict

    if not is_adapted(model):
        raise ConfigError("this network has no adapters")
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach() for name, tensor in state.items()}


def load_lora_state(model: LLaDA2, tensors: dict[str, Tensor]) -> None:
    """Sets the adapters of an adapted network. Raises CheckpointError naming what is missing, extra or mis-shaped."""
    from peft import set_peft_model_state_dict

    expected = lora_state(model)
    kinds = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "extra": sorted(tensors.keys() - expected.keys()),
        "mis-shaped": sorted(
            f"{name} {list(tensors[name].shape)} instead of {list(tensor.shape)}"
            for name, tensor in expected.items()
            if name in tensors and tensors[name].shape != tensor.shape
        ),
    }
    problems = "; ".join(f"{len(names)} {kind}: {', '.join(names[:4])}" for kind, names in kinds.items() if names)
    if problems:
        raise CheckpointError(f"the adapter does not fit this network: {problems}")
    set_peft_model_state_dict(model, tensors)


def _refuse_adapted(model: LLaDA2) -> None:
    if is_adapted(model):
        raise ConfigError("this network has adapters already; merge them first")


def _has(names: list[str], end: str) -> bool:
    return any(name.endswith(end) for name in names)
