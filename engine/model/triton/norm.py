"""RMSNorm of the rows between layers, after the addition of what the last layer changes."""

import torch
import triton
import triton.language as tl

from orcastream.engine.attention.triton.formats import FORMATS
from orcastream.engine.model.triton.rounding import rounded

_VALUES_PER_WARP = 512
"""16 per thread: two loads of 16 bytes from each row, all in flight before the sum of squares waits for them."""


def add_norm(hidden: torch.Tensor, change: torch.Tensor | None, factors: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Add `change` to `hidden`, both `[num_rows, width]`, in place; return the result normalized, of the same shape.

    `factors` `[width]`, float32, multiply the normalized values. All rows are contiguous.
    """
    num_rows, width = hidden.shape
    normed = torch.empty_like(hidden)
    block = triton.next_power_of_2(width)
    norm_kernel[(num_rows,)](
        hidden,
        hidden if change is None else change,
        factors,
        normed,
        epsilon,
        WIDTH=width,
        BLOCK=block,
        CHANGED=change is not None,
        FORMAT=FORMATS[hidden.dtype],
        num_warps=warps_of(block),
    )
    return normed


def warps_of(block: int) -> int:
    """Return the warps for rows of up to `block` values."""
    return min(16, max(4, block // _VALUES_PER_WARP))


@triton.jit
def norm_kernel(
    hidden,
    change,
    factors,
    normed,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANGED: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Compute one row."""
    start = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(hidden + start + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(factors + columns, mask=inside, other=0.0)
    if CHANGED:
        x += tl.load(change + start + columns, mask=inside, other=0.0).to(tl.float32)
        total = rounded(x, FORMAT)
        tl.store(hidden + start + columns, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + epsilon)
    tl.store(normed + start + columns, rounded(x * scale * factor, FORMAT), mask=inside)
