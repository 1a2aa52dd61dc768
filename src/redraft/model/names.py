"""The two-way map between the tensors of checkpoint files and those in memory (spec/model.md, "Checkpoint").

In memory the experts of a layer are packed: `experts.gate_up` [E, 2F, C], gate rows first, and `experts.down`
[E, C, F]. Files hold them one by one (the official layout) or stacked over experts (the veomni variant). Every file
tensor is a view of one memory tensor, so one table serves reading and writing.
Shapes: E experts, F expert width, C hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]

_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a file tensor lives: `state[parameter][index]`, a view of shape `shape`."""

    parameter: str
    index: tuple[int | slice, ...]
    shape: Shape


def official_slots(shapes: Mapping[str, Shape]) -> dict[str, Slot]:
    """File name → slot in the official layout, for a network whose `state_dict` has these shapes."""
    return _slots(shapes, stacked=False)


def stacked_slots(shapes: Mapping[str, Shape]) -> dict[str, Slot]:
    """The same for the veomni layout: `mlp.experts.{gate,up,down}_proj` of shape [E, out, in], without `.weight`."""
    return _slots(shapes, stacked=True)


def is_stacked(names: Iterable[str]) -> bool:
    """Whether these file names are of the veomni layout."""
    return any(name.endswith(".mlp.experts.gate_proj") for name in names)


def keeps_precision(parameter: str) -> bool:
    """Whether a memory tensor stays in float32 (or wider) when the model is lower: router weight and expert bias."""
    return parameter.endswith((".mlp.gate.weight", ".mlp.gate.expert_bias"))


def _slots(shapes: Mapping[str, Shape], stacked: bool) -> dict[str, Slot]:
    out: dict[str, Slot] = {}
    for parameter, shape in shapes.items():
        name = parameter if parameter == _HEAD else f"model.{parameter}"
        prefix, _, part = name.rpartition(".")
        if prefix.endswith(".mlp.experts"):
            out |= _expert_slots(prefix, part, parameter, shape, stacked)
        else:
            out[name] = Slot(parameter, (), shape)
    return out


def _expert_slots(prefix: str, part: str, parameter: str, shape: Shape, stacked: bool) -> Iterator[tuple[str, Slot]]:
    experts, rows, columns = shape
    if part == "gate_up":
        pieces = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}
    else:
        pieces = {"down_proj": slice(0, rows)}
    for piece, span in pieces.items():
        one = (span.stop - span.start, columns)
        if stacked:
            yield f"{prefix}.{piece}", Slot(parameter, (slice(None), span), (experts, *one))
        else:
            for expert in range(experts):
                yield f"{prefix}.{expert}.{piece}.weight", Slot(parameter, (expert, span), one)
