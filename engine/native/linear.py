"""Linear layers with packed weights."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from engine.native.library import library

PANEL = 32
"""Columns of a panel."""

FORMATS = {torch.bfloat16: 0, torch.float32: 1}


class _Linear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


class Rows(ctypes.Structure):
    """A matrix of bfloat16 or float32 as the operators take it; it does not keep the memory alive."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("m", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )

    @classmethod
    def of(cls, rows: torch.Tensor) -> "Rows":
        """Of `[m, width]` with values side by side."""
        return cls(rows.data_ptr(), rows.shape[0], rows.stride(0), FORMATS[rows.dtype])


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    rows = ctypes.POINTER(Rows)
    found.orca_linear.argtypes = (pointer, rows, rows, integer)
    found.orca_linear_gather.argtypes = (pointer, pointer, rows, integer)
    found.orca_linear_pack.argtypes = (integer, pointer, size, size, pointer, integer)
    found.orca_linear_bytes.argtypes = (integer, size, size)
    found.orca_linear_bytes.restype = size
    for name in ("orca_linear", "orca_linear_gather", "orca_linear_pack"):
        getattr(found, name).restype = None
    return found


class PackedLinear:
    """y = x W^T + b with W packed once, in bfloat16 or float32, on a CPU."""

    def __init__(
        self,
        memory: torch.Tensor,
        n: int,
        k: int,
        dtype: torch.dtype,
        bias: torch.Tensor | None = None,
        instruction_set: str | None = None,
    ) -> None:
        """Around `memory`, panels that `pack` has written; see there. `bias` is float32, `[n]`."""
        self._functions = _functions(instruction_set)
        self._instruction_set = instruction_set
        self.n, self.k, self.dtype = n, k, dtype
        self.memory = memory
        self.bias = bias
        address = None if bias is None else bias.data_ptr()
        self._linear = _Linear(memory.data_ptr(), None, address, n, k, FORMATS[dtype])
        self._pointer = ctypes.addressof(self._linear)

    @property
    def address(self) -> int:
        """Of what the operators take; valid while this lives."""
        return self._pointer

    @classmethod
    def pack(
        cls, weight: torch.Tensor, bias: torch.Tensor | None = None, instruction_set: str | None = None
    ) -> "PackedLinear":
        """A copy of `weight`, `[n, k]`, in its own format, and of `bias`, `[n]`."""
        functions = _functions(instruction_set)
        (n, k), form = weight.shape, FORMATS[weight.dtype]
        memory = torch.empty(functions.orca_linear_bytes(form, n, k), dtype=torch.uint8)
        source = weight.detach().contiguous()
        functions.orca_linear_pack(form, source.data_ptr(), n, k, memory.data_ptr(), torch.get_num_threads())
        own_bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        return cls(memory, n, k, weight.dtype, own_bias, instruction_set)

    @classmethod
    def merge(cls, parts: Sequence["PackedLinear"]) -> "PackedLinear":
        """One that computes what `parts` compute from the same input, side by side.

        ValueError where they do not have the same depth and format, or one but the last does not end with a panel.
        """
        first = parts[0]
        if any((part.k, part.dtype) != (first.k, first.dtype) for part in parts):
            raise ValueError("parts: got several depths or formats, allowed: one")
        if any(part.n % PANEL for part in parts[:-1]):
            raise ValueError(f"parts: got {[part.n for part in parts]} columns, allowed: multiples of {PANEL}")
        bias = None
        if any(part.bias is not None for part in parts):
            bias = torch.cat([torch.zeros(part.n) if part.bias is None else part.bias for part in parts])
        memory = torch.cat([part.memory for part in parts])
        n = sum(part.n for part in parts)
        return cls(memory, n, first.k, first.dtype, bias, first._instruction_set)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """x `[..., k]` in the weight's format; returns `[..., n]` in `dtype`, by default that of x."""
        if x.dtype != self.dtype or x.shape[-1] != self.k:
            raise ValueError(f"x: got {x.dtype} {tuple(x.shape)}, allowed: {self.dtype} [..., {self.k}]")
        rows = x.reshape(-1, self.k)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape[0], self.n, dtype=dtype or x.dtype)
        self._functions.orca_linear(self._pointer, Rows.of(rows), Rows.of(y), torch.get_num_threads())
        return y.view(*x.shape[:-1], self.n)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, `[*ids.shape, k]`: an embedding's lookup. IndexError for one that is not there."""
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < self.n):
            raise IndexError(f"ids: got {int(ids.min())} to {int(ids.max())}, allowed: 0 to {self.n - 1}")
        y = torch.empty(ids.numel(), self.k, dtype=self.dtype)
        ids = ids.to(torch.int64).contiguous()
        self._functions.orca_linear_gather(self._pointer, ids.data_ptr(), Rows.of(y), torch.get_num_threads())
        return y.view(*ids.shape, self.k)
