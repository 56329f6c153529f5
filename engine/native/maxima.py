"""The operator that finds the highest number of each row."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from orcastream.engine.native.library import library
from orcastream.engine.native.linear import Rows
from orcastream.engine.native.team import team_size

_VALUES_PER_THREAD = 1 << 16
"""Fewer are compared sooner than a thread starts."""


class RowMaxima:
    """The highest number of each row of a matrix and its first place, as `row_maxima` finds them; `found` once an
    operator that computes the matrix has written them.
    """

    __slots__ = ("found", "places", "values")

    def __init__(self, num_rows: int) -> None:
        self.values = torch.empty(num_rows)
        self.places = torch.empty(num_rows, dtype=torch.int64)
        self.found = False


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    found.orca_maxima.argtypes = (ctypes.POINTER(Rows), size, pointer, size, pointer, pointer, ctypes.c_int32)
    found.orca_maxima.restype = None
    return found


def has_maxima(matrix: torch.Tensor) -> bool:
    """Whether `row_maxima` can read the matrix, provided that there are compiled operators."""
    return matrix.device.type == "cpu" and matrix.dtype in (torch.float32, torch.bfloat16) and matrix.stride(1) == 1


def row_maxima(
    matrix: torch.Tensor, rows: Sequence[int], instruction_set: str | None = None
) -> tuple[list[float], list[int]]:
    """Return the highest number of each of those rows of `matrix`, float32 or bfloat16 `[m, n]`, and its first place.

    A NaN counts as the highest, as in NumPy. Raises ValueError for a matrix without columns, or another one that the
    operator cannot read, and IndexError for a row that it does not have.
    """
    if not has_maxima(matrix) or matrix.shape[1] == 0:
        raise ValueError(f"matrix: got {matrix.dtype} {tuple(matrix.shape)}, allowed: float32 or bfloat16 [m, n > 0]")
    if not all(0 <= row < len(matrix) for row in rows):
        raise IndexError(f"rows: got {list(rows)}, allowed: 0 to {len(matrix) - 1}")
    which, found = torch.tensor(rows, dtype=torch.int64), RowMaxima(len(rows))
    threads = team_size(len(which) * matrix.shape[1], _VALUES_PER_THREAD)
    addresses = which.data_ptr(), len(which), found.values.data_ptr(), found.places.data_ptr()
    _functions(instruction_set).orca_maxima(Rows.of(matrix), matrix.shape[1], *addresses, threads)
    return found.values.tolist(), found.places.tolist()
