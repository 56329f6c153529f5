"""Unwritten memory: it contains values that make a wrong result obvious."""

import weakref
from collections.abc import Callable

import numpy as np
import torch

_FLOAT8_NAN = 0x7F
"""The byte that means NaN in float8_e4m3fn, which `Tensor.fill_` cannot write."""

_NO_INDEX = 1_000_003
"""Fills integers of more than two bytes: larger than any tensor in the tests, so no valid index."""

_NO_SMALL_INDEX = 99
"""Fills integers of one or two bytes, including bool."""


class _Buffer(np.ndarray):
    """Bytes that a finalizer can watch; a plain ndarray allows no weak references."""


def unwritten(num_bytes: int, dtype: torch.dtype, freed: Callable[[], object]) -> torch.Tensor:
    """Return new host memory of `num_bytes` bytes as a flat tensor `[num_bytes / dtype.itemsize]`.

    Floating-point numbers are NaN; integers are too large for an index. `freed` is called when the last tensor that
    shares the memory is gone. Raises RuntimeError if `num_bytes` is not a multiple of the item size.
    """
    buffer = np.empty(num_bytes, np.uint8).view(_Buffer)
    weakref.finalize(buffer, freed).atexit = False
    flat = torch.from_numpy(buffer).view(dtype) if num_bytes else torch.empty(0, dtype=dtype)
    if dtype is torch.float8_e4m3fn:
        flat.view(torch.uint8).fill_(_FLOAT8_NAN)
    elif dtype.is_floating_point:
        flat.fill_(torch.nan)
    else:
        flat.fill_(_NO_INDEX if dtype.itemsize > 2 else _NO_SMALL_INDEX)
    return flat
