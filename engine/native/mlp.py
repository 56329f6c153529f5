"""A gated MLP as one operator."""

import ctypes
from functools import cache

import torch

from orcastream.engine.native.elementwise import ACTIVATIONS, ActivationName
from orcastream.engine.native.library import library
from orcastream.engine.native.linear import PackedLinear, Rows


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    rows = ctypes.POINTER(Rows)
    found.orca_mlp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, rows, rows, ctypes.c_int32, ctypes.c_int32)
    found.orca_mlp.restype = ctypes.c_int32
    return found


def mlp(
    gate_up: PackedLinear,
    down: PackedLinear,
    x: torch.Tensor,
    activation: ActivationName,
    instruction_set: str | None = None,
) -> torch.Tensor | None:
    """Return down(activation(gate) * up) of x, `[..., hidden]` in the weights' format; `gate_up` has gate and up.

    The result equals that of the three operators in sequence, but inner rows are never written to memory as rows.
    None if there is no such operator: with int8, or if the inner size is not a multiple of the panel width.
    """
    rows = x.reshape(-1, gate_up.k)
    if x.dtype != down.dtype or rows.stride(1) != 1:
        return None
    y = torch.empty(rows.shape[0], down.n, dtype=x.dtype)
    found = _functions(instruction_set)
    places = gate_up.address, down.address, Rows.of(rows), Rows.of(y)
    is_done = found.orca_mlp(*places, ACTIVATIONS[activation], torch.get_num_threads())
    return y.view(*x.shape[:-1], down.n) if is_done else None
