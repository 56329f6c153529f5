"""Writes keys and values into their blocks."""

from typing import Any

import torch
import triton
import triton.language as tl

from orcastream.engine.attention.quantize import LARGEST
from orcastream.engine.attention.triton.formats import FORMATS
from orcastream.engine.attention.triton.rounding import to_format
from orcastream.engine.kv.store import LayerCache

_TOKENS = 16
"""Tokens of one program: enough bytes to hide the latency, few enough that a decode batch uses many multiprocessors."""


def write(cache: LayerCache, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Write key and value `[num_kv_heads, num_tokens, size]` to `slots` `[num_tokens]`; negative slots are skipped.

    8-bit caches get one scale per vector, as from `quantize`.
    """
    heads, tokens, key_size = key.shape
    value_size = value.shape[2]
    grid = (triton.cdiv(tokens, _TOKENS), heads)
    parts: tuple[Any, ...] = (cache.key_scales, cache.value_scales)
    if cache.key_scales is None:
        parts = (cache.keys, cache.values)  # never touched
    write_kernel[grid](
        key,
        value,
        slots,
        cache.keys,
        cache.values,
        *parts,
        tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        cache.keys[0].numel() // key_size,
        LARGEST=LARGEST.get(cache.keys.dtype, 0.0),
        FORMAT=FORMATS[cache.keys.dtype],
        KEY_SIZE=key_size,
        VALUE_SIZE=value_size,
        BLOCK_K=triton.next_power_of_2(key_size),
        BLOCK_V=triton.next_power_of_2(value_size),
        TOKENS=_TOKENS,
    )


@triton.jit(do_not_specialize=["num_tokens", "num_slots"], do_not_specialize_on_alignment=["slots"])
def write_kernel(
    key,
    value,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    num_tokens,
    key_head_stride,
    key_token_stride,
    value_head_stride,
    value_token_stride,
    num_slots,
    LARGEST: tl.constexpr,
    FORMAT: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write TOKENS tokens of one head."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + tokens, mask=tokens < num_tokens, other=-1)
    place = head * num_slots + slot
    rows = tokens.to(tl.int64)
    _store(
        key + head * key_head_stride + rows[:, None] * key_token_stride,
        keys,
        key_scales,
        place,
        slot >= 0,
        LARGEST,
        FORMAT,
        KEY_SIZE,
        BLOCK_K,
    )
    _store(
        value + head * value_head_stride + rows[:, None] * value_token_stride,
        values,
        value_scales,
        place,
        slot >= 0,
        LARGEST,
        FORMAT,
        VALUE_SIZE,
        BLOCK_V,
    )


@triton.jit
def _store(
    source,
    numbers,
    scales,
    place,
    wanted,
    LARGEST: tl.constexpr,
    FORMAT: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    mask = wanted[:, None] & (columns < SIZE)[None, :]
    vectors = tl.load(source + columns[None, :], mask=mask, other=0.0)
    if LARGEST > 0:
        wide = vectors.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(wide), axis=1), LARGEST)
        kept = to_format(tl.maximum(scale, 1.1754943508222875e-38), tl.bfloat16)
        tl.store(scales + place, kept, mask=wanted)
        scaled = tl.div_rn(wide, tl.broadcast_to(kept.to(tl.float32)[:, None], wide.shape))
        stored = to_format(tl.minimum(tl.maximum(scaled, -LARGEST), LARGEST), FORMAT)
    elif vectors.dtype == FORMAT:
        stored = vectors
    else:
        stored = to_format(vectors.to(tl.float32), FORMAT)
    tl.store(numbers + place[:, None] * SIZE + columns[None, :], stored, mask=mask)
