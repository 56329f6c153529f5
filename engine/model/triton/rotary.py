"""Rotary positions of queries and keys, after the RMSNorm per head that some models have."""

import torch
import triton
import triton.language as tl

from orcastream.engine.attention.triton.formats import FORMATS
from orcastream.engine.model.triton.rounding import rounded

_VALUES = 2048
"""Of one program: enough loads at once to hide their latency, and several programs for a single token."""


def rotate(
    rows: torch.Tensor,
    positions: torch.Tensor,
    angles: torch.Tensor,
    head_norms: torch.Tensor | None,
    epsilon: float,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
) -> None:
    """Normalize and rotate, in place, the queries and keys of `rows`.

    `rows` `[num_tokens, (num_heads + 2 * num_kv_heads) * head_size]` are contiguous: all queries of a token, then its
    keys, then its values, which stay unchanged. `positions` `[num_tokens]` are int64. `angles` `[positions,
    rotary_size]`, float32, has the cosines of each pair of values (i, i + rotary_size / 2) at a position, then the
    sines. Values beyond `rotary_size` are not rotated. `head_norms` `[2, head_size]`, float32, are the factors of
    queries and keys, or None without norm.
    """
    num_tokens, half = rows.shape[0], angles.shape[1] // 2
    block = triton.next_power_of_2(half)
    rest = head_size - 2 * half
    heads = max(1, _VALUES // triton.next_power_of_2(head_size))
    num_rotated = num_heads + num_kv_heads
    heads = min(heads, triton.next_power_of_2(num_rotated))
    rotate_kernel[(num_tokens, triton.cdiv(num_rotated, heads))](
        rows,
        positions,
        angles,
        angles if head_norms is None else head_norms,
        epsilon,
        QUERIES=num_heads,
        ROTATED=num_rotated,
        ALL=num_rotated + num_kv_heads,
        SIZE=head_size,
        HALF=half,
        HEADS=heads,
        BLOCK=block,
        # Unrotated values are only touched by a norm.
        REST=triton.next_power_of_2(rest) if rest and head_norms is not None else 0,
        NORMED=head_norms is not None,
        FORMAT=FORMATS[rows.dtype],
        num_warps=4,
    )


@triton.jit(do_not_specialize_on_alignment=["positions"])
def rotate_kernel(
    rows,
    positions,
    angles,
    head_norms,
    epsilon,
    QUERIES: tl.constexpr,
    ROTATED: tl.constexpr,
    ALL: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    NORMED: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Compute HEADS heads of one token: the halves that are rotated against each other, and what is left of each."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK)
    inside = (heads < ROTATED)[:, None] & (columns < HALF)[None, :]
    first = rows + token * ALL * SIZE + heads[:, None] * SIZE + columns[None, :]
    left = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(first + HALF, mask=inside, other=0.0).to(tl.float32)
    angle = angles + tl.load(positions + token) * (2 * HALF) + columns
    cosine = tl.load(angle, mask=columns < HALF, other=0.0)[None, :]
    sine = tl.load(angle + HALF, mask=columns < HALF, other=0.0)[None, :]
    if NORMED:
        factor = head_norms + (heads >= QUERIES).to(tl.int32)[:, None] * SIZE + columns[None, :]
        squares = tl.sum(left * left + right * right, axis=1)
        if REST > 0:
            others = tl.arange(0, REST)
            is_other = (heads < ROTATED)[:, None] & (others < SIZE - 2 * HALF)[None, :]
            rest_at = rows + token * ALL * SIZE + heads[:, None] * SIZE + 2 * HALF + others[None, :]
            rest = tl.load(rest_at, mask=is_other, other=0.0).to(tl.float32)
            squares += tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(squares / SIZE + epsilon)[:, None]
        left = left * scale * tl.load(factor, mask=inside, other=0.0)
        right = right * scale * tl.load(factor + HALF, mask=inside, other=0.0)
        if REST > 0:
            own = head_norms + (heads >= QUERIES).to(tl.int32)[:, None] * SIZE + 2 * HALF + others[None, :]
            rest = rest * scale * tl.load(own, mask=is_other, other=0.0)
            tl.store(rest_at, rounded(rest, FORMAT), mask=is_other)
    tl.store(first, rounded(left * cosine - right * sine, FORMAT), mask=inside)
    tl.store(first + HALF, rounded(right * cosine + left * sine, FORMAT), mask=inside)
