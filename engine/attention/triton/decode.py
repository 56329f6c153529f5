"""Attention of spans of one token, each context split so that one long request uses the whole device.

Flash-decoding (Dao et al., 2023): splits are computed independently, then merged. The query heads that share a key head
are the rows of one tile, so that keys and values are read once.
"""

import torch
import triton
import triton.language as tl

from orcastream.engine.attention.base import AttentionCall
from orcastream.engine.attention.triton.block import add_sink, attend_block
from orcastream.engine.attention.triton.formats import FORMATS, factors_of
from orcastream.engine.attention.triton.plan import DecodePlan
from orcastream.engine.attention.triton.rounding import to_format
from orcastream.engine.attention.triton.scores import score_factors, sinks_or
from orcastream.engine.attention.triton.tiles import decode_tile
from orcastream.engine.kv.store import LayerCache

_MERGED = 16
"""Splits that are merged at once, so that their loads overlap."""


def decode(plan: DecodePlan, cache: LayerCache, query: torch.Tensor, output: torch.Tensor, call: AttentionCall) -> None:
    """Attend for the first `plan.num_spans` tokens of `query` `[num_heads, num_tokens, key_size]`.

    Writes the same rows of `output` `[num_tokens, num_heads, value_size]`; zeros for a span that sees nothing.
    """
    heads, _, key_size = query.shape
    kv_heads, _, block_size, value_size = cache.values.shape
    splits = len(plan.splits)
    mixed = torch.empty(splits, heads, value_size, dtype=torch.float32, device=query.device)
    sizes = torch.empty(splits, heads, dtype=torch.float32, device=query.device)
    tile = decode_tile(heads // kv_heads, key_size, value_size, query.dtype)
    quantized = cache.key_scales is not None
    scale, cap = score_factors(call)
    slots = cache.keys[0].numel() // key_size
    split_kernel[(splits, kv_heads)](
        query,
        cache.keys,
        cache.values,
        cache.key_scales if quantized else cache.keys,
        cache.value_scales if quantized else cache.values,
        plan.tables,
        plan.splits,
        mixed,
        sizes,
        scale,
        cap,
        query.stride(0),
        query.stride(1),
        slots,
        plan.tables.stride(0),
        HEADS=heads // kv_heads,
        BLOCK_SIZE=block_size,
        KEY_SIZE=key_size,
        VALUE_SIZE=value_size,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        BLOCK_K=tile.key_columns,
        BLOCK_V=tile.value_columns,
        QUANTIZED=quantized,
        CAPPED=call.softcap is not None,
        FACTORS=factors_of(query.dtype),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    merge_kernel[(plan.num_spans, heads)](
        mixed,
        sizes,
        plan.firsts,
        sinks_or(call, query),
        output,
        VALUE_SIZE=value_size,
        BLOCK_V=tile.value_columns,
        MERGED=_MERGED,
        SINKS=call.sinks is not None,
        FORMAT=FORMATS[output.dtype],
        num_warps=2,
    )


@triton.jit(do_not_specialize=["num_slots", "table_stride"], do_not_specialize_on_alignment=["tables", "splits"])
def split_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    splits,
    mixed,
    sizes,
    scale,
    cap,
    query_head_stride,
    query_token_stride,
    num_slots,
    table_stride,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUANTIZED: tl.constexpr,
    CAPPED: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """Compute one split of one span and one key head; empty splits that pad the list write nothing."""
    split, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    span = tl.load(splits + 3 * split)
    begin = tl.load(splits + 3 * split + 1).to(tl.int32)
    end = tl.load(splits + 3 * split + 2).to(tl.int32)
    if begin >= end:
        return
    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    heads = kv_head * HEADS + rows
    queries = tl.load(
        query + heads[:, None] * query_head_stride + span * query_token_stride + columns[None, :],
        mask=(rows < HEADS)[:, None] & (columns < KEY_SIZE)[None, :],
        other=0.0,
    ).to(FACTORS)
    sums = tl.zeros([ROWS, BLOCK_V], dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    best = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    for start in range(begin, end, COLUMNS):
        positions = start + tl.arange(0, COLUMNS)
        inside = positions < end
        sums, total, best = attend_block(
            sums,
            total,
            best,
            queries,
            positions,
            inside,
            inside[None, :],
            tables + span * table_stride,
            keys + kv_head * num_slots * KEY_SIZE,
            values + kv_head * num_slots * VALUE_SIZE,
            key_scales + kv_head * num_slots,
            value_scales + kv_head * num_slots,
            scale,
            cap,
            BLOCK_SIZE,
            KEY_SIZE,
            VALUE_SIZE,
            BLOCK_K,
            BLOCK_V,
            QUANTIZED,
            CAPPED,
            FACTORS,
        )
    places = split * tl.num_programs(1) * HEADS + heads
    value_columns = tl.arange(0, BLOCK_V)
    tl.store(
        mixed + places[:, None] * VALUE_SIZE + value_columns[None, :],
        sums / total[:, None],
        mask=(rows < HEADS)[:, None] & (value_columns < VALUE_SIZE)[None, :],
    )
    tl.store(sizes + places, best + tl.log2(total), mask=rows < HEADS)


@triton.jit(do_not_specialize_on_alignment=["firsts"])
def merge_kernel(
    mixed,
    sizes,
    firsts,
    sinks,
    output,
    VALUE_SIZE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MERGED: tl.constexpr,
    SINKS: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Merge the splits of one head of one span, weighted by the sums of their weights, whose log2 are `sizes`."""
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_heads = tl.num_programs(1)
    first, stop = tl.load(firsts + span).to(tl.int32), tl.load(firsts + span + 1).to(tl.int32)
    columns = tl.arange(0, BLOCK_V)
    sums = tl.zeros([1, BLOCK_V], dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    best = tl.full([1], float("-inf"), dtype=tl.float32)
    for start in range(first, stop, MERGED):
        splits = start + tl.arange(0, MERGED)
        inside = splits < stop
        places = splits.to(tl.int64) * num_heads + head
        size = tl.load(sizes + places, mask=inside, other=float("-inf"))
        part = tl.load(
            mixed + places[:, None] * VALUE_SIZE + columns[None, :],
            mask=inside[:, None] & (columns < VALUE_SIZE)[None, :],
            other=0.0,
        )
        higher = tl.maximum(best, tl.max(size, axis=0))
        weights = tl.exp2(size - higher)
        shrunk = tl.exp2(best - higher)
        sums = sums * shrunk[:, None] + tl.sum(part * weights[:, None], axis=0)[None, :]
        total = total * shrunk + tl.sum(weights, axis=0)
        best = higher
    if SINKS:
        sums, total, best = add_sink(sums, total, best, tl.load(sinks + head))
    result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    places = (span * num_heads + head) * VALUE_SIZE + columns
    tl.store(output + places[None, :], to_format(result, FORMAT), mask=(columns < VALUE_SIZE)[None, :])
