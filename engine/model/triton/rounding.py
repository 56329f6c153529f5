"""Rounding of results to nearest: by the hardware, or bit by bit in Triton's interpreter, which would truncate."""

import triton
import triton.language as tl

from orcastream.engine.attention.triton.formats import INTERPRETED
from orcastream.engine.attention.triton.rounding import to_format

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def rounded(values, FORMAT: tl.constexpr):
    """float32 `values` in FORMAT."""
    return to_format(values, FORMAT) if _INTERPRETED else values.to(FORMAT)
