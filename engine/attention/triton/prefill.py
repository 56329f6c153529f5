"""Attention of spans of several tokens, which see themselves causally and all cached tokens before them.

FlashAttention over block tables. A tile holds neighboring tokens with all query heads that share a key head.
"""

import torch
import triton
import triton.language as tl

from orcastream.engine.attention.base import AttentionCall
from orcastream.engine.attention.triton.block import add_sink, attend_block
from orcastream.engine.attention.triton.formats import FORMATS, factors_of
from orcastream.engine.attention.triton.plan import PrefillPlan
from orcastream.engine.attention.triton.rounding import to_format
from orcastream.engine.attention.triton.scores import score_factors, sinks_or
from orcastream.engine.attention.triton.tiles import prefill_tile
from orcastream.engine.kv.store import LayerCache


def prefill(
    plan: PrefillPlan, cache: LayerCache, query: torch.Tensor, output: torch.Tensor, call: AttentionCall
) -> None:
    """Attend for the spans of `plan`, whose tokens are in `query` `[num_heads, num_tokens, key_size]`.

    Writes their rows of `output` `[num_tokens, num_heads, value_size]`.
    """
    heads, _, key_size = query.shape
    kv_heads, _, block_size, value_size = cache.values.shape
    quantized = cache.key_scales is not None
    tile = prefill_tile(heads // kv_heads, key_size, value_size, query.dtype, quantized=quantized)
    scale, cap = score_factors(call)
    prefill_kernel[(plan.num_tiles(tile.tokens), kv_heads)](
        query,
        cache.keys,
        cache.values,
        cache.key_scales if quantized else cache.keys,
        cache.value_scales if quantized else cache.values,
        plan.tables,
        plan.offsets,
        plan.contexts,
        sinks_or(call, query),
        output,
        scale,
        cap,
        plan.num_spans,
        query.stride(0),
        query.stride(1),
        cache.keys[0].numel() // key_size,
        plan.tables.stride(0),
        WINDOW=plan.window or 0,
        HEADS=heads // kv_heads,
        BLOCK_SIZE=block_size,
        KEY_SIZE=key_size,
        VALUE_SIZE=value_size,
        TOKENS=tile.tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        BLOCK_K=tile.key_columns,
        BLOCK_V=tile.value_columns,
        QUANTIZED=quantized,
        CAPPED=call.softcap is not None,
        SINKS=call.sinks is not None,
        FACTORS=factors_of(query.dtype),
        FORMAT=FORMATS[output.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@triton.jit
def find_tile(offsets, number, num_spans, TOKENS: tl.constexpr):
    """Return the span of tile `number`, its first token in the stream, and the tile's first token in the span.

    PrefillPlan.num_tiles says how tiles are numbered.
    """
    first = tl.load(offsets)
    span = tl.full([], 0, dtype=tl.int32)
    stop = num_spans
    while stop - span > 1:
        middle = (span + stop) // 2
        begins = (tl.load(offsets + middle) - first) // TOKENS + middle <= number
        span = tl.where(begins, middle, span)
        stop = tl.where(begins, stop, middle)
    begin = tl.load(offsets + span)
    return span, begin, (number - ((begin - first) // TOKENS + span)).to(tl.int32) * TOKENS


@triton.jit(
    do_not_specialize=["num_spans", "num_slots", "table_stride"],
    do_not_specialize_on_alignment=["tables", "offsets", "contexts"],
)
def prefill_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    offsets,
    contexts,
    sinks,
    output,
    scale,
    cap,
    num_spans,
    query_head_stride,
    query_token_stride,
    num_slots,
    table_stride,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUANTIZED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    FACTORS: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """One tile of one key head: row r is token `r // HEADS` of the tile, query head `r % HEADS` of the key head."""
    # The last tile of a span sees most, and starts first, so that it does not finish long after the others.
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    span, begin, token = find_tile(offsets, number, num_spans, TOKENS)
    length = (tl.load(offsets + span + 1) - begin).to(tl.int32)
    if token >= length:
        return
    context = tl.load(contexts + span).to(tl.int32)

    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    tokens = token + rows // HEADS
    wanted = (rows < TOKENS * HEADS) & (tokens < length)
    stream = begin + tokens
    heads = kv_head * HEADS + rows % HEADS
    queries = tl.load(
        query + heads[:, None] * query_head_stride + stream[:, None] * query_token_stride + columns[None, :],
        mask=wanted[:, None] & (columns < KEY_SIZE)[None, :],
        other=0.0,
    ).to(FACTORS)
    sums = tl.zeros([ROWS, BLOCK_V], dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    best = tl.full([ROWS], float("-inf"), dtype=tl.float32)

    lowest = context - length + token
    highest = context - length + tl.minimum(token + TOKENS, length)
    # Unused rows repeat the last token.
    position = tl.minimum(context - length + tokens, highest - 1)
    table = tables + span.to(tl.int64) * table_stride
    keys += kv_head * num_slots * KEY_SIZE
    values += kv_head * num_slots * VALUE_SIZE
    key_scales += kv_head * num_slots
    value_scales += kv_head * num_slots
    if WINDOW > 0:
        seen = tl.maximum(lowest - WINDOW + 1, 0) // COLUMNS * COLUMNS
    else:
        # Keys that every row sees need no mask.
        seen = (lowest + 1) // COLUMNS * COLUMNS
        for start in range(0, seen, COLUMNS):
            positions = start + tl.arange(0, COLUMNS)
            sums, total, best = attend_block(
                sums,
                total,
                best,
                queries,
                positions,
                None,
                None,
                table,
                keys,
                values,
                key_scales,
                value_scales,
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
    for start in range(seen, highest, COLUMNS):
        positions = start + tl.arange(0, COLUMNS)
        inside = positions < highest
        visible = positions[None, :] <= position[:, None]
        if WINDOW > 0:
            # Positions outside the window of all rows no longer have a block.
            inside = inside & (positions > lowest - WINDOW)
            visible = visible & (positions[None, :] > position[:, None] - WINDOW)
        sums, total, best = attend_block(
            sums,
            total,
            best,
            queries,
            positions,
            inside,
            visible & inside[None, :],
            table,
            keys,
            values,
            key_scales,
            value_scales,
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
    if SINKS:
        sums, total, best = add_sink(sums, total, best, tl.load(sinks + heads))
    value_columns = tl.arange(0, BLOCK_V)
    places = (stream * (tl.num_programs(1) * HEADS) + heads) * VALUE_SIZE
    tl.store(
        output + places[:, None] + value_columns[None, :],
        to_format(sums / total[:, None], FORMAT),
        mask=wanted[:, None] & (value_columns < VALUE_SIZE)[None, :],
    )
