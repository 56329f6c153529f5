"""The gates of experts as one operator."""

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from orcastream.engine.native.library import library
from orcastream.engine.native.linear import Rows
from orcastream.engine.native.team import team_size

CLAMPED_SWISH = 5
"""Beside the ACTIVATIONS: gate * logistic(alpha * gate) * (up + 1), with gate and up clamped first."""

_VALUES_PER_THREAD = 16384
"""Fewer are computed sooner than a thread starts."""


class GateStructure(ctypes.Structure):
    """As src/gate.h describes it."""

    _fields_ = (("activation", ctypes.c_int32), ("alpha", ctypes.c_float), ("limit", ctypes.c_float))


@dataclass(frozen=True, slots=True)
class Gate:
    """activation(gate) * up; `alpha` and `limit` are those of CLAMPED_SWISH."""

    activation: int
    alpha: float = 0.0
    limit: float = 0.0

    @property
    def structure(self) -> GateStructure:
        """The gate as the operators expect it."""
        return GateStructure(self.activation, self.alpha, self.limit)


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    rows, integer = ctypes.POINTER(Rows), ctypes.c_int32
    found.orca_gate.argtypes = (ctypes.POINTER(GateStructure), rows, rows, rows, ctypes.c_int64, integer)
    found.orca_gate.restype = None
    return found


def apply_gate(x: torch.Tensor, gate: Gate, instruction_set: str | None = None) -> torch.Tensor:
    """Return `[..., width]` for x `[..., 2 * width]`, bfloat16 or float32, which has gate and up side by side."""
    width = x.shape[-1] // 2
    both = x.reshape(-1, 2 * width)
    if both.stride(1) != 1:
        both = both.contiguous()
    y = torch.empty(both.shape[0], width, dtype=x.dtype)
    threads = team_size(y.numel(), _VALUES_PER_THREAD)
    rows = (Rows.of(part) for part in (both[:, :width], both[:, width:], y))
    _functions(instruction_set).orca_gate(gate.structure, *rows, width, threads)
    return y.view(*x.shape[:-1], width)
