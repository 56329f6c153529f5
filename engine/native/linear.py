"""Linear layers with packed weights."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import torch

from orcastream.engine.native.formats import COMPACT_BFLOAT16, FORMATS
from orcastream.engine.native.large_pages import empty_bytes, shortened
from orcastream.engine.native.library import library

PANEL = 32
"""Columns of a panel."""

Allocate = Callable[[int], torch.Tensor]
"""Returns memory of that many bytes, uint8, aligned to 64."""

_ROWS_AT_ONCE = 4096
"""Rows of a weight that are quantized together, so that their float32 copy stays small."""

_WEIGHTS_PER_OUTLIER = 512
"""Fewest: the product of an outlier takes as long as that of some 20 other weights."""

_PACKED_INPUTS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.bfloat16,),
    torch.float32: (torch.float32,),
    torch.int8: (torch.bfloat16, torch.float32),
}
"""Formats of x that weights in each format take."""


class _Linear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("outliers", ctypes.c_void_p),
        ("first_outlier", ctypes.c_void_p),
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
    found.orca_compact_begin.argtypes = (pointer, pointer, pointer, integer)
    found.orca_compact_end.argtypes = (pointer, pointer, pointer, pointer, integer)
    nothing = ("orca_linear", "orca_linear_gather", "orca_linear_pack", "orca_compact_begin", "orca_compact_end")
    for name in nothing:
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
        outliers: torch.Tensor | None = None,
        first_outlier: torch.Tensor | None = None,
    ) -> None:
        """Wrap `memory`, panels that `pack` has written. `bias` is float32, `[n]`.

        With int8 there are `scales`, float32, and `sums` of the weight's rows, int32, both padded to whole panels.
        Compact weights have `outliers`, int64, and the index of each panel's first one, int32, `[panels + 1]`.
        """
        self._functions = _functions(instruction_set)
        self.instruction_set = instruction_set
        self.n, self.k, self.dtype = n, k, dtype
        self.memory = memory
        self.bias = bias
        self.scales, self.sums = scales, sums
        self.outliers, self.first_outlier = outliers, first_outlier
        parts = (memory, scales, sums, outliers, first_outlier, bias)
        addresses = (None if each is None else each.data_ptr() for each in parts)
        self._linear = _Linear(*addresses, n, k, COMPACT_BFLOAT16 if self.is_compact else FORMATS[dtype])
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
        allocate: Allocate = empty_bytes,
    ) -> "PackedLinear":
        """Pack a copy of `weight`, `[n, k]`, in its own format, and of `bias`, `[n]`; `threads` None: torch's."""
        own_bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        memory = cls._panels(weight, instruction_set, threads, allocate)
        return cls(memory, weight.shape[0], weight.shape[1], weight.dtype, own_bias, instruction_set)

    @classmethod
    def quantize(
        cls,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        instruction_set: str | None = None,
        allocate: Allocate = empty_bytes,
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
        memory = cls._panels(rounded, instruction_set, None, allocate)
        return cls(memory, n, k, torch.int8, own_bias, instruction_set, scales, sums)

    @staticmethod
    def _panels(
        weight: torch.Tensor, instruction_set: str | None, threads: int | None, allocate: Allocate
    ) -> torch.Tensor:
        functions = _functions(instruction_set)
        (n, k), form = weight.shape, FORMATS[weight.dtype]
        memory = allocate(functions.orca_linear_bytes(form, n, k))
        source = weight.detach().contiguous()
        threads = threads or torch.get_num_threads()
        functions.orca_linear_pack(form, source.data_ptr(), n, k, memory.data_ptr(), threads)
        return memory

    @classmethod
    def merge(cls, parts: Sequence["PackedLinear"]) -> "PackedLinear":
        """Return one layer that computes the outputs of `parts` for the same input, side by side.

        Raises ValueError if depths or formats differ, if any part but the last does not fill whole panels, or if
        weights are compact.
        """
        first = parts[0]
        if any((part.k, part.dtype) != (first.k, first.dtype) for part in parts):
            raise ValueError("parts: got several depths or formats, allowed: one")
        if any(part.is_compact for part in parts):
            raise ValueError("parts: got compact weights, allowed: others, which are merged before")
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
        return cls(memory, n, first.k, first.dtype, bias, first.instruction_set, scales, sums)

    def compact(self, left_memory: Callable[[int], torch.Tensor | None] = lambda _: None) -> "PackedLinear | None":
        """Return the same layer with bfloat16 weights in 12 bits, without loss, or None if that does not pay off.

        `left_memory` returns memory of at least that many bytes that a layer had and that nothing refers to any more.

        Four bits stand for the upper byte, which has one of few values in nearly all weights of a panel (DFloat11,
        https://arxiv.org/abs/2504.11651, compresses the same redundancy by codes of variable length). Layers with more
        than one other weight in 512 stay as they are, as do all with instruction sets that cannot unpack them.
        """
        functions, threads = self._functions, torch.get_num_threads()
        if self.dtype != torch.bfloat16 or self.is_compact or not functions.orca_compact_usable():
            return None
        num_bytes = functions.orca_linear_bytes(COMPACT_BFLOAT16, self.n, self.k)
        left = left_memory(num_bytes)
        memory = empty_bytes(num_bytes) if left is None else shortened(left, num_bytes)
        counts = torch.empty(-(-self.n // PANEL), dtype=torch.int32)
        functions.orca_compact_begin(self._pointer, counts.data_ptr(), memory.data_ptr(), threads)
        first = torch.zeros(len(counts) + 1, dtype=torch.int32)
        torch.cumsum(counts, 0, dtype=torch.int32, out=first[1:])
        num_outliers = int(first[-1])
        if num_outliers * _WEIGHTS_PER_OUTLIER > self.n * self.k:
            return None
        outliers = torch.empty(num_outliers, dtype=torch.int64)
        functions.orca_compact_end(self._pointer, first.data_ptr(), outliers.data_ptr(), memory.data_ptr(), threads)
        return PackedLinear(
            memory, self.n, self.k, self.dtype, self.bias, self.instruction_set, outliers=outliers, first_outlier=first
        )

    @property
    def is_compact(self) -> bool:
        """Whether weights have 12 bits."""
        return self.outliers is not None

    def adopt(self, other: "PackedLinear") -> None:
        """Take over the weights of `other`, the same layer in another format, and free the own ones.

        What refers to this layer, or to its `address`, computes with the adopted weights from now on.
        """
        self.memory, self.outliers, self.first_outlier = other.memory, other.outliers, other.first_outlier
        ctypes.pointer(self._linear)[0] = other._linear

    def check_input(self, x: torch.Tensor) -> None:
        """Raise ValueError if x is not `[..., k]` in a format that the weight takes."""
        allowed = _PACKED_INPUTS[self.dtype]
        if x.dtype not in allowed or x.shape[-1] != self.k:
            names = " or ".join(map(str, allowed))
            raise ValueError(f"x: got {x.dtype} {tuple(x.shape)}, allowed: {names} [..., {self.k}]")

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return `[..., n]` in `dtype` (default: that of x) for x `[..., k]` in the weight's format."""
        self.check_input(x)
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
