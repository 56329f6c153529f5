"""Linear layers with packed weights."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from orcastream.engine.native.formats import FORMATS
from orcastream.engine.native.large_pages import empty_bytes
from orcastream.engine.native.library import library

PANEL = 32
"""Columns of a panel."""

_ROWS_AT_ONCE = 4096
"""Rows of a weight that are quantized together, so that their float32 copy stays small."""

_PACKED_INPUTS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.bfloat16,),
    torch.float32: (torch.float32,),
    torch.int8: (torch.bfloat16, torch.float32),
}


class _Linear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


class Rows(ctypes.Structure):
    """A matrix of bfloat16 or float32 as the operators expect it; does not keep the memory alive."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("m", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )

    @classmethod
    def of(cls, rows: torch.Tensor) -> "Rows":
        """Describe `[m, width]` with contiguous rows."""
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
    """y = x W^T + b with W packed once, in bfloat16, float32 or int8, on a CPU.

    In int8 each output column has a scale, and so has each row of x, which is rounded to 8 bits.
    """

    def __init__(
        self,
        memory: torch.Tensor,
        n: int,
        k: int,
        dtype: torch.dtype,
        bias: torch.Tensor | None = None,
        instruction_set: str | None = None,
        scales: torch.Tensor | None = None,
        sums: torch.Tensor | None = None,
    ) -> None:
        """Wrap `memory`, panels that `pack` has written. `bias` is float32, `[n]`.

        With int8 there are `scales`, float32, and `sums` of the weight's rows, int32, both padded to whole panels.
        """
        self._functions = _functions(instruction_set)
        self._instruction_set = instruction_set
        self.n, self.k, self.dtype = n, k, dtype
        self.memory = memory
        self.bias = bias
        self.scales, self.sums = scales, sums
        address = None if bias is None else bias.data_ptr()
        found = (None if each is None else each.data_ptr() for each in (scales, sums))
        self._linear = _Linear(memory.data_ptr(), *found, address, n, k, FORMATS[dtype])
        self._pointer = ctypes.addressof(self._linear)

    @property
    def address(self) -> int:
        """Address of the structure that the operators expect; valid while this object lives."""
        return self._pointer

    @classmethod
    def pack(
        cls,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        instruction_set: str | None = None,
        threads: int | None = None,
    ) -> "PackedLinear":
        """Pack a copy of `weight`, `[n, k]`, in its own format, and of `bias`, `[n]`; `threads` None: torch's."""
        own_bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        memory = cls._panels(weight, instruction_set, threads)
        return cls(memory, weight.shape[0], weight.shape[1], weight.dtype, own_bias, instruction_set)

    @classmethod
    def quantize(
        cls, weight: torch.Tensor, bias: torch.Tensor | None = None, instruction_set: str | None = None
    ) -> "PackedLinear":
        """Pack `weight`, `[n, k]`, in int8: each row times 127 over its largest magnitude, rounded."""
        n, k = weight.shape
        scales = torch.zeros(-(-n // PANEL) * PANEL)
        sums = torch.zeros(len(scales), dtype=torch.int32)
        rounded = torch.empty(n, k, dtype=torch.int8)
        for begin in range(0, n, _ROWS_AT_ONCE):
            part = weight[begin : begin + _ROWS_AT_ONCE].detach().float()
            largest = part.abs().amax(dim=1).clamp(min=1e-30)
            scales[begin : begin + len(part)] = largest / 127
            whole = (part * (127 / largest).unsqueeze(1)).round()
            rounded[begin : begin + len(part)] = whole.to(torch.int8)
            sums[begin : begin + len(part)] = whole.sum(dim=1).to(torch.int32)
        own_bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        memory = cls._panels(rounded, instruction_set)
        return cls(memory, n, k, torch.int8, own_bias, instruction_set, scales, sums)

    @staticmethod
    def _panels(weight: torch.Tensor, instruction_set: str | None, threads: int | None = None) -> torch.Tensor:
        functions = _functions(instruction_set)
        (n, k), form = weight.shape, FORMATS[weight.dtype]
        memory = empty_bytes(functions.orca_linear_bytes(form, n, k))
        source = weight.detach().contiguous()
        threads = threads or torch.get_num_threads()
        functions.orca_linear_pack(form, source.data_ptr(), n, k, memory.data_ptr(), threads)
        return memory

    @classmethod
    def merge(cls, parts: Sequence["PackedLinear"]) -> "PackedLinear":
        """Return one layer that computes the outputs of `parts` for the same input, side by side.

        Raises ValueError if depths or formats differ, or if any part but the last does not fill whole panels.
        """
        first = parts[0]
        if any((part.k, part.dtype) != (first.k, first.dtype) for part in parts):
            raise ValueError("parts: got several depths or formats, allowed: one")
        if any(part.n % PANEL for part in parts[:-1]):
            raise ValueError(f"parts: got {[part.n for part in parts]} columns, allowed: multiples of {PANEL}")
        bias = None
        if any(part.bias is not None for part in parts):
            bias = torch.cat([torch.zeros(part.n) if part.bias is None else part.bias for part in parts])
        memory = empty_bytes(sum(len(part.memory) for part in parts))
        torch.cat([part.memory for part in parts], out=memory)
        n = sum(part.n for part in parts)
        scales = sums = None
        if first.dtype == torch.int8:
            scales = torch.cat([part.scales for part in parts if part.scales is not None])
            sums = torch.cat([part.sums for part in parts if part.sums is not None])
        return cls(memory, n, first.k, first.dtype, bias, first._instruction_set, scales, sums)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return `[..., n]` in `dtype` (default: that of x) for x `[..., k]` in the weight's format."""
        allowed = _PACKED_INPUTS[self.dtype]
        if x.dtype not in allowed or x.shape[-1] != self.k:
            names = " or ".join(map(str, allowed))
            raise ValueError(f"x: got {x.dtype} {tuple(x.shape)}, allowed: {names} [..., {self.k}]")
        rows = x.reshape(-1, self.k)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape[0], self.n, dtype=dtype or x.dtype)
        self._functions.orca_linear(self._pointer, Rows.of(rows), Rows.of(y), torch.get_num_threads())
        return y.view(*x.shape[:-1], self.n)

    def gather(self, ids: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return rows of the weight, `[*ids.shape, k]`: an embedding lookup. Raises IndexError for an invalid id.

        `dtype` is bfloat16 or float32, by default the weight's own; with int8 it is required.
        """
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.n):
            raise IndexError(f"ids: got {int(ids.min())} to {int(ids.max())}, allowed: 0 to {self.n - 1}")
        y = torch.empty(ids.numel(), self.k, dtype=dtype or self.dtype)
        ids = ids.to(torch.int64).contiguous()
        self._functions.orca_linear_gather(self._pointer, ids.data_ptr(), Rows.of(y), torch.get_num_threads())
        return y.view(*ids.shape, self.k)
