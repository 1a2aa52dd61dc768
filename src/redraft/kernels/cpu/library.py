"""The built kernel as Python sees it: tensors in, tensors out.

Shapes: N rows, C inputs, O outputs, E experts, K experts a row, F expert width.
"""

from __future__ import annotations

import ctypes
import logging
import re
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from redraft.kernels.cpu.build import BuildError, build
from redraft.kernels.cpu.levels import VARIABLE, Level, wanted
from redraft.kernels.int8 import BLOCK, Int8

TYPES = {torch.float32: 0, torch.bfloat16: 1}
_INT8 = 2
_BAD_EXPERT, _NO_MEMORY = 1, 2
_RUNTIME = re.compile(r"/lib(gomp|omp|iomp5)\b[^/]*\.so[^/]*$")

_log = logging.getLogger(__name__)


class _Rows(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
    )

    @classmethod
    def of(cls, x_NC: Tensor) -> _Rows:
        return cls(x_NC.data_ptr(), *x_NC.shape, x_NC.stride(0), TYPES[x_NC.dtype])


class _Stack(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("stack", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
        ("scale_row", ctypes.c_int64),
        ("scale_stack", ctypes.c_int64),
    )

    @classmethod
    def of(cls, weight_EOI: Tensor | Int8) -> _Stack:
        data, scale = (weight_EOI.data, weight_EOI.scale) if isinstance(weight_EOI, Int8) else (weight_EOI, None)
        stack, row, _ = data.stride()
        scales = (None, 0, 0) if scale is None else (scale.data_ptr(), scale.stride(1), scale.stride(0))
        return cls(data.data_ptr(), *data.shape, row, stack, *scales)


class Library:
    """One built kernel. Weights are read where they lie, as torch has them; nothing is copied or kept of them.

    Tensors are on the CPU, their last dimension is dense; x is float32 or bfloat16, and weights of a call are all of
    one of these. What a row gives depends on that row alone, bit for bit. instructions: that a dtype is computed with.
    """

    def __init__(self, path: Path, level: Level) -> None:
        """BuildError when the library can't be used, which its caller answers by the next level."""
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"{path} can't be loaded: {error}") from None
        self.level = level
        vectors = "AVX-512" if "avx512f" in level.features else "AVX2"
        native = {"amx": "AMX", "avx512_bf16": "AVX512-BF16"}.get(level.name, f"{vectors}, widened")
        self.instructions = {torch.float32: vectors, torch.bfloat16: native}
        self._c.redraft_start.argtypes = [ctypes.c_void_p]
        rows, stack, count = ctypes.POINTER(_Rows), ctypes.POINTER(_Stack), ctypes.c_int64
        address, number = ctypes.c_void_p, ctypes.c_int
        self._c.redraft_experts.argtypes = [*(rows, address, address, count, stack, stack, stack, number, rows, number)]
        self._c.redraft_linear.argtypes = [rows, stack, number, rows, number]
        if not self._c.redraft_start(threads_of_process()):
            raise BuildError(f"the system grants no {level.name} instructions to this process")

    def routed_experts(
        self, x_NC: Tensor, expert_NK: Tensor, weight_NK: Tensor, gate_up_EHC: Tensor | Int8, down_ECF: Tensor | Int8
    ) -> Tensor:
        """As `redraft.kernels.moe.routed_experts`. ValueError for an expert that isn't there."""
        if expert_NK.shape != weight_NK.shape or expert_NK.shape[0] != x_NC.shape[0]:
            shapes = [[*tensor.shape] for tensor in (x_NC, expert_NK, weight_NK)]
            raise ValueError(f"rows, experts and weights don't fit each other: {shapes}")
        gate_EFC, up_EFC = gate_up_EHC.chunk(2, dim=1)
        ids, shares = expert_NK.to(torch.int64).contiguous(), weight_NK.to(torch.float32).contiguous()
        return self._experts(x_NC, ids, shares, expert_NK.shape[1], gate_EFC, up_EFC, down_ECF)

    def swiglu(self, x_NC: Tensor, gate_FC: Tensor | Int8, up_FC: Tensor | Int8, down_OF: Tensor | Int8) -> Tensor:
        """down(silu(gate(x)) * up(x)), [N, O] in x's dtype."""
        return self._experts(x_NC, None, None, 1, gate_FC[None], up_FC[None], down_OF[None])

    def linear(self, x_NC: Tensor, weight_OC: Tensor | Int8, dtype: torch.dtype | None = None) -> Tensor:
        """x times the transposed weight, [N, O], summed in float32. dtype: of the result, x's if None."""
        _require_fit(x_NC.shape[1], weight_OC)
        out = x_NC.new_empty((x_NC.shape[0], weight_OC.shape[0]), dtype=dtype or x_NC.dtype)
        x, weight, to = _Rows.of(x_NC), _Stack.of(weight_OC[None]), _Rows.of(out)
        kind, threads = _type(weight_OC), torch.get_num_threads()
        _check(self._c.redraft_linear(ctypes.byref(x), ctypes.byref(weight), kind, ctypes.byref(to), threads))
        return out

    def _experts(
        self,
        x_NC: Tensor,
        ids: Tensor | None,
        shares: Tensor | None,
        per_row: int,
        gate: Tensor | Int8,
        up: Tensor | Int8,
        down: Tensor | Int8,
    ) -> Tensor:
        _require_fit(x_NC.shape[1], gate, up)
        _require_fit(gate.shape[1], down)
        if gate.shape != up.shape or gate.shape[0] != down.shape[0]:
            raise ValueError(f"gate {[*gate.shape]}, up {[*up.shape]} and down {[*down.shape]} don't fit each other")
        out = x_NC.new_empty((x_NC.shape[0], down.shape[1]))
        x, to = _Rows.of(x_NC), _Rows.of(out)
        stacks = [_Stack.of(weight) for weight in (gate, up, down)]
        _check(
            self._c.redraft_experts(
                ctypes.byref(x),
                None if ids is None else ids.data_ptr(),
                None if shares is None else shares.data_ptr(),
                per_row,
                *map(ctypes.byref, stacks),
                _type(gate),
                ctypes.byref(to),
                torch.get_num_threads(),
            )
        )
        return out


def _require_fit(width: int, *weights: Tensor | Int8) -> None:
    """The kernel reads as much as shapes say: what doesn't fit must not get there."""
    for weight in weights:
        if weight.shape[-1] != width:
            raise ValueError(f"weights {[*weight.shape]} need rows of {weight.shape[-1]} numbers, got {width}")
        if isinstance(weight, Int8) and weight.scale.shape != (*weight.shape[:-1], -(-width // BLOCK)):
            raise ValueError(f"scales {[*weight.scale.shape]} don't fit 8-bit weights {[*weight.shape]}")


def _type(weight: Tensor | Int8) -> int:
    return _INT8 if isinstance(weight, Int8) else TYPES[weight.dtype]


def _check(status: int) -> None:
    if status == _BAD_EXPERT:
        raise ValueError("an expert id is out of range")
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the rows of the experts")


@cache
def library() -> Library | None:
    """The best kernel that this machine can build and run, or None: switched off, another processor, no compiler. What
    stands in its way is logged, once."""
    levels = wanted()
    problem = None
    for level in levels:
        try:
            return Library(build(level.flags), level)
        except BuildError as error:
            problem = problem or error
    if problem:
        _log.warning("no CPU kernel, torch computes instead: %s (%s=off for silence)", problem, VARIABLE)
    return None


def threads_of_process() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that torch has brought into this process; a second runtime
    would be a second pool of threads. None where there is none."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps.splitlines())
    for path in paths:
        if _RUNTIME.search(path):
            parallel = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
            if parallel is not None:
                return ctypes.cast(parallel, ctypes.c_void_p).value
    return None
