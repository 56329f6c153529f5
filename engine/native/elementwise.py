"""The operators between linear layers: RMSNorm, gated activations, rotary positions."""

import ctypes
from functools import cache
from typing import Literal

import torch

from orcastream.engine.native.formats import FORMATS
from orcastream.engine.native.library import library
from orcastream.engine.native.linear import Rows
from orcastream.engine.native.team import team_size

ActivationName = Literal["silu", "gelu_tanh", "gelu", "relu", "squared_relu"]
ACTIVATIONS: dict[ActivationName, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "squared_relu": 4}
"""Those of native/src/activation.h."""

_VALUES_PER_THREAD = 16384
"""Fewer are computed sooner than a thread starts."""


class _Vectors(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("part_stride", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    rows, vectors = ctypes.POINTER(Rows), ctypes.POINTER(_Vectors)
    found.orca_rms_norm.argtypes = (vectors, vectors, vectors, pointer, size, ctypes.c_float, integer)
    found.orca_gated.argtypes = (rows, rows, rows, size, integer, integer)
    found.orca_rotary.argtypes = (vectors, pointer, pointer, size, integer)
    for name in ("orca_rms_norm", "orca_gated", "orca_rotary"):
        getattr(found, name).restype = None
    return found


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    instruction_set: str | None = None,
) -> torch.Tensor:
    """Normalize x `[..., width]`, bfloat16 or float32, over its last dimension, times `weight`, float32 `[width]`.

    With `residual`, contiguous and of the shape of x, x is first added to it in place, and the sum is normalized.
    """
    given = _vectors(x)
    y = torch.empty(x.shape, dtype=x.dtype)
    added = None if residual is None else _vectors(residual)[0]
    threads = team_size(x.numel(), _VALUES_PER_THREAD)
    found = _functions(instruction_set)
    found.orca_rms_norm(given[0], added, _vectors(y)[0], weight.data_ptr(), x.shape[-1], eps, threads)
    return y


def gated(
    gate: torch.Tensor, up: torch.Tensor, activation: ActivationName, instruction_set: str | None = None
) -> torch.Tensor:
    """Return activation(gate) * up, both `[..., width]` in bfloat16 or both in float32."""
    width = gate.shape[-1]
    left, right = (_with_adjacent_values(part.reshape(-1, width)) for part in (gate, up))
    y = torch.empty(left.shape, dtype=gate.dtype)
    threads = team_size(y.numel(), _VALUES_PER_THREAD)
    rows = Rows.of(left), Rows.of(right), Rows.of(y)
    _functions(instruction_set).orca_gated(*rows, width, ACTIVATIONS[activation], threads)
    return y.view(gate.shape)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, instruction_set: str | None = None) -> None:
    """Rotate the vectors of x, `[tokens, heads, size]`, in place by their token's angles, float32 `[tokens, width]`.

    Value i pairs with value i + width / 2, as in Llama; values from `width` on are unchanged.
    """
    given, kept = _vectors(x)
    if kept is not x:
        raise ValueError(f"x: got strides {x.stride()}, allowed: 1 in the last dimension")
    angles = cos.contiguous(), sin.contiguous()
    threads = team_size(x.numel(), _VALUES_PER_THREAD)
    _functions(instruction_set).orca_rotary(given, angles[0].data_ptr(), angles[1].data_ptr(), cos.shape[-1], threads)


def _with_adjacent_values(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows, copied if they lie across the memory."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _vectors(x: torch.Tensor) -> tuple[_Vectors, torch.Tensor]:
    """Return x as rows of parts, and the tensor that holds them: a copy if x has another layout."""
    if x.stride(-1) != 1 or (x.dim() > 3 and x.shape[:-3].numel() != 1):
        x = x.contiguous()
    if x.dim() == 1 or (x.is_contiguous() and x.dim() != 3):
        width = x.shape[-1]
        return _Vectors(x.data_ptr(), x.numel() // max(width, 1), width, 1, 0, FORMATS[x.dtype]), x
    rows, parts = (x.shape[-3], x.shape[-2]) if x.dim() > 2 else (x.shape[-2], 1)
    row_stride, part_stride = (x.stride(-3), x.stride(-2)) if x.dim() > 2 else (x.stride(-2), 0)
    return _Vectors(x.data_ptr(), rows, row_stride, parts, part_stride, FORMATS[x.dtype]), x
