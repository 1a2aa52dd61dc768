"""The tensors of a network that is not in memory as a whole, read one by one: from files, or by merging adapters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping

from torch import Tensor, nn

from redraft.model.network import LLaDA2
from redraft.training.lora import adapter_modules, checkpoint_names, is_adapted, merged_module, plain_name


class Tensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for; the last one is kept, since its parts are asked for in turn."""

    def __init__(self, names: Collection[str], read: Callable[[str], Tensor]):
        self._names, self._read = dict.fromkeys(names), read
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self._last is None or self._last[0] != name:
            if name not in self._names:
                raise KeyError(name)
            self._last = None  # before the next one takes its memory
            self._last = name, self._read(name)
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def merged(model: LLaDA2, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of the plain network, with its adapters added to the weights, one module at a time.

    model: an adapted network, of which only the structure is used (it may be on the meta device), or a plain one, whose
    `state` is returned. state: its tensors, by the names of its `state_dict`.
    """
    if not is_adapted(model):
        return state
    adapted = adapter_modules(model)
    names = {plain_name(name) for name in model.state_dict().keys() - checkpoint_names(model)}
    last: dict[str, Mapping[str, Tensor]] = {}  # the tensors of one module, merged

    def read(name: str) -> Tensor:
        path = next((path for path in adapted if name.startswith(f"{path}.")), None)
        if path is None:
            return state[name]
        if path not in last:
            last.clear()
            last[path] = _merged(adapted[path], path, state)
        return last[path][name.removeprefix(f"{path}.")]

    return Tensors(names, read)


def _merged(module: nn.Module, path: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module of PEFT's once its adapters are merged; `module` and `state` stay as they are."""
    own = copy.deepcopy(module).to("meta")
    own.load_state_dict({name: state[f"{path}.{name}"].clone() for name in own.state_dict()}, assign=True)
    return merged_module(own).state_dict()
