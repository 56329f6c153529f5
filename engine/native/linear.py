"""Linear layers with packed weights."""

import ctypes
from functools import cache

import torch

from engine.native.library import library

BFLOAT16, FLOAT32, INT8 = 0, 1, 2
_FORMATS = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32, torch.int8: INT8}


class _Linear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


class _Rows(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("m", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


@cache
def _functions(instruction_set: str | None) -> ctypes.CDLL:
    found = library(instruction_set)
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    rows = ctypes.POINTER(_Rows)
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
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, instruction_set: str | None = None
    ) -> None:
        """Pack `weight`, `[n, k]`, in its own format; `bias`, `[n]`."""
        self._functions = _functions(instruction_set)
        self.n, self.k = weight.shape
        self.dtype = weight.dtype
        form = _FORMATS[weight.dtype]
        self._memory = torch.empty(self._functions.orca_linear_bytes(form, self.n, self.k), dtype=torch.uint8)
        source = weight.detach().contiguous()
        threads = torch.get_num_threads()
        self._functions.orca_linear_pack(form, source.data_ptr(), self.n, self.k, self._memory.data_ptr(), threads)
        self._bias = None if bias is None else bias.detach().float().contiguous()
        address = None if self._bias is None else self._bias.data_ptr()
        self._linear = _Linear(self._memory.data_ptr(), None, address, self.n, self.k, form)
        self._pointer = ctypes.addressof(self._linear)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """x `[..., k]` in the weight's format; returns `[..., n]` in `dtype`, by default that of x."""
        rows = x.reshape(-1, self.k)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape[0], self.n, dtype=dtype or x.dtype)
        self._functions.orca_linear(self._pointer, _rows(rows), _rows(y), torch.get_num_threads())
        return y.view(*x.shape[:-1], self.n)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, `[*ids.shape, k]`: an embedding's lookup."""
        y = torch.empty(ids.numel(), self.k, dtype=self.dtype)
        ids = ids.contiguous()
        self._functions.orca_linear_gather(self._pointer, ids.data_ptr(), _rows(y), torch.get_num_threads())
        return y.view(*ids.shape, self.k)


def _rows(rows: torch.Tensor) -> _Rows:
    return _Rows(rows.data_ptr(), rows.shape[0], rows.stride(0), _FORMATS[rows.dtype])
