"""Linear layers of groups of rows, as the experts of a mixture have them."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from orcastream.engine.native.large_pages import empty_bytes
from orcastream.engine.native.library import library
from orcastream.engine.native.linear import PackedLinear, Rows
from orcastream.engine.native.team import team_size

_LINE_BYTES = 64

_VALUES_PER_THREAD = 16384
"""Fewer are added sooner than a thread starts."""

IntArray = NDArray[np.int64]

Arrange = Callable[[torch.Tensor], torch.Tensor]
"""Returns the same rows in another order."""


class _Groups(ctypes.Structure):
    _fields_ = (
        ("linears", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("num_groups", ctypes.c_int64),
    )


class _Terms(ctypes.Structure):
    _fields_ = (("places", ctypes.c_void_p), ("weights", ctypes.c_void_p), ("count", ctypes.c_int64))


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    rows, integer = ctypes.POINTER(Rows), ctypes.c_int32
    found.orca_grouped_linear.argtypes = (ctypes.POINTER(_Groups), rows, rows, integer)
    found.orca_combine.argtypes = (rows, ctypes.POINTER(_Terms), rows, ctypes.c_int64, integer)
    found.orca_grouped_linear.restype = found.orca_combine.restype = None
    return found


class Routes:
    """Which experts compute which tokens: the pairs of both, sorted by expert, and by token for each expert."""

    def __init__(self, experts: torch.Tensor, num_experts: int) -> None:
        """`experts` `[tokens, experts per token]`; numbers that are none of an expert's are left out."""
        chosen = experts.reshape(-1).numpy()
        order = np.argsort(chosen, kind="stable")
        numbers, begins = np.unique(chosen[order], return_index=True)
        first, last = np.searchsorted(numbers, (0, num_experts))
        bounds = np.append(begins, len(order))[first : last + 1]
        kept = order[bounds[0] : bounds[-1]] if len(bounds) else order[:0]
        self.experts: IntArray = numbers[first:last].astype(np.int64, copy=False)
        """Those that compute any token, ascending."""
        self.offsets: IntArray = (bounds - bounds[0]).astype(np.int64) if len(bounds) else np.zeros(1, np.int64)
        """Where the pairs of each begin, and where all end: `[experts + 1]`."""
        self.tokens: IntArray = kept // experts.shape[-1]
        """The token of each pair."""
        self.places: IntArray = np.full(experts.shape, -1, np.int64)
        """The pair of each choice `[tokens, experts per token]`; -1: none."""
        self.places.reshape(-1)[kept] = np.arange(len(kept))


class _SideBySide:
    """Memory of several parts of one size: small ones alone could not be moved into large pages."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._num_given = 0
        self.memory = torch.empty(0, dtype=torch.uint8)

    def __call__(self, num_bytes: int) -> torch.Tensor:
        """Return the next part."""
        stride = -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
        if not len(self.memory):
            self.memory = empty_bytes(self._count * stride)
        begin = self._num_given * stride
        self._num_given += 1
        return self.memory[begin : begin + num_bytes]


class GroupedLinear:
    """Linear layers of one shape and format, by number."""

    @classmethod
    def pack(
        cls,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor] | None = None,
        instruction_set: str | None = None,
        *,
        int8: bool = False,
        arrange: Arrange | None = None,
    ) -> "GroupedLinear":
        """Pack copies of weights, each `[n, k]`, in their own format or in `int8`, and of biases, each `[n]`.

        `arrange` is applied to each of them first, one after another.
        """
        memory, make = _SideBySide(len(weights)), PackedLinear.quantize if int8 else PackedLinear.pack
        own = [None] * len(weights) if biases is None else biases
        arranged = arrange or (lambda given: given)
        linears = [
            make(arranged(weight), None if bias is None else arranged(bias), instruction_set, allocate=memory)
            for weight, bias in zip(weights, own, strict=True)
        ]
        return cls(linears, memory.memory)

    def __init__(self, linears: Sequence[PackedLinear], memory: torch.Tensor | None = None) -> None:
        """`memory` has the weights of all, if they are side by side."""
        self.linears = tuple(linears)
        self.memory = memory
        self.n, self.k = linears[0].n, linears[0].k
        if any((one.n, one.k, one.dtype) != (self.n, self.k, linears[0].dtype) for one in linears):
            raise ValueError("linears: got several shapes or formats, allowed: one")
        self._functions = _functions(linears[0].instruction_set)
        self._addresses = np.array([one.address for one in linears], np.uint64)

    def compact(self) -> "GroupedLinear | None":
        """Return the same layers with weights in 12 bits, or None if that does not pay off for all of them."""
        memory = _SideBySide(len(self.linears))
        linears = [one.compact(memory) for one in self.linears]
        whole = [one for one in linears if one is not None]
        return GroupedLinear(whole, memory.memory) if len(whole) == len(linears) else None

    def adopt(self, other: "GroupedLinear") -> None:
        """Compute with the weights of the same layers in another form."""
        for own, adopted in zip(self.linears, other.linears, strict=True):
            own.adopt(adopted)
        self.memory = other.memory

    def __call__(self, x: torch.Tensor, routes: Routes, rows: IntArray | None = None) -> torch.Tensor:
        """Return `[pairs, n]`, each pair's row of x `[..., k]` times the layer of its expert.

        `rows` has the row of each pair, `[pairs]`; without it, x has a row for each pair. Raises ValueError if x is not
        in a format that the layers take.
        """
        self.linears[0].check_input(x)
        if x.stride(1) != 1:
            x = x.contiguous()
        y = x.new_empty(len(routes.tokens), self.n)
        linears = self._addresses[routes.experts]
        groups = _Groups(
            linears.ctypes.data,
            routes.offsets.ctypes.data,
            None if rows is None else rows.ctypes.data,
            len(linears),
        )
        self._functions.orca_grouped_linear(groups, Rows.of(x), Rows.of(y), torch.get_num_threads())
        return y


def combine(x: torch.Tensor, routes: Routes, weights: torch.Tensor, instruction_set: str | None = None) -> torch.Tensor:
    """Return for each token the sum of its pairs' rows of x `[pairs, width]` times `weights` `[tokens, choices]`."""
    factors = weights.float().contiguous()
    y = x.new_empty(len(factors), x.shape[1])
    terms = _Terms(routes.places.ctypes.data, factors.data_ptr(), factors.shape[1])
    threads = team_size(y.numel() * factors.shape[1], _VALUES_PER_THREAD)
    _functions(instruction_set).orca_combine(Rows.of(x), terms, Rows.of(y), y.shape[1], threads)
    return y
