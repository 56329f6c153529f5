"""The structures of a mixture of experts; src/mixture.h describes them."""

import ctypes
from functools import cache

import torch

from orcastream.engine.native.gate import GateStructure
from orcastream.engine.native.library import library
from orcastream.engine.native.linear import Rows

SOFTMAX = 0
SIGMOID = 1


class Routing(ctypes.Structure):
    """How experts are chosen and weighted."""

    _fields_ = (
        ("correction", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_experts", "choices", "groups", "chosen_groups")),
        *((name, ctypes.c_float) for name in ("factor", "least_sum")),
        *((name, ctypes.c_int32) for name in ("scoring", "normalizes")),
    )


class SharedExpert(ctypes.Structure):
    """The addresses of an expert that computes all rows."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate_up", "down", "weight")),
        ("activation", ctypes.c_int32),
    )


class Mixture(ctypes.Structure):
    """The addresses of a mixture of experts, and its shape."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("router", "gate_up", "down")),
        ("routing", Routing),
        ("gate", GateStructure),
        ("shared", SharedExpert),
        ("score_format", ctypes.c_int32),
    )


@cache
def _functions() -> ctypes.CDLL:
    found = library()
    rows = ctypes.POINTER(Rows)
    found.orca_mixture.argtypes = (ctypes.c_void_p, rows, rows, ctypes.c_int32)
    found.orca_mixture.restype = None
    return found


def mixture(address: int, x: torch.Tensor) -> torch.Tensor:
    """Return what the mixture at that address yields for x `[rows, hidden]`, contiguous, in the same format."""
    y = torch.empty_like(x)
    _functions().orca_mixture(address, Rows.of(x), Rows.of(y), torch.get_num_threads())
    return y
