"""Attention of one tile of queries to some neighboring keys and values: scores and online softmax.

Online softmax (Milakov and Gimelshein, arXiv 1805.02867) as in FlashAttention (arXiv 2205.14135). Scores are multiplied
by log2(e), so that exp2, which the hardware provides, can be used.
"""

import triton
import triton.language as tl


@triton.jit
def slots_of(table, positions, inside, BLOCK_SIZE: tl.constexpr):
    """Return the cache slots of `positions` by a request's block table; arbitrary for those not `inside`."""
    blocks = tl.load(table + positions // BLOCK_SIZE, mask=inside, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def load_rows(base, slots, inside, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return `[len(slots), BLOCK]` of one head's keys or values; zeros beyond SIZE and if not `inside`."""
    columns = tl.arange(0, BLOCK)
    places = base + slots[:, None] * SIZE + columns[None, :]
    if BLOCK == SIZE:
        rows = tl.load(places, mask=inside[:, None], other=0.0)
    else:
        rows = tl.load(places, mask=inside[:, None] & (columns < SIZE)[None, :], other=0.0)
    return rows


@triton.jit
def attend_block(
    mixed,
    total,
    best,
    query,
    positions,
    inside,
    visible,
    table,
    keys,
    values,
    key_scales,
    value_scales,
    scale,
    cap,
    BLOCK_SIZE: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUANTIZED: tl.constexpr,
    CAPPED: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """Attend from `query` `[rows, BLOCK_K]` to the keys at `positions`; return the updated `mixed`, `total` and `best`.

    `mixed` `[rows, BLOCK_V]` is the sum of values weighted by exp2(score - best), `total` the sum of the weights.
    `inside` marks positions that exist, `visible` (of a shape that broadcasts to the scores) those that count.
    `scale` and `cap` are those of `score_factors`.
    """
    slots = slots_of(table, positions, inside, BLOCK_SIZE)
    key = load_rows(keys, slots, inside, KEY_SIZE, BLOCK_K).to(FACTORS)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    if QUANTIZED:
        scores *= tl.load(key_scales + slots, mask=inside, other=0.0).to(tl.float32)[None, :]
    if CAPPED:
        scores = cap * (1.0 - 2.0 / (tl.exp2(tl.minimum(scores, 100.0)) + 1.0))  # beyond it tanh is 1
    scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, axis=1))
    # A row that has seen nothing yet has -inf, which must not be subtracted from itself.
    pivot = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - pivot[:, None])
    shrunk = tl.exp2(best - pivot)
    total = total * shrunk + tl.sum(weights, axis=1)
    value = load_rows(values, slots, inside, VALUE_SIZE, BLOCK_V)
    if QUANTIZED:
        value_scale = tl.load(value_scales + slots, mask=inside, other=0.0).to(tl.float32)
        if tl.float16 == FACTORS:
            # A weight times a scale can be too small for it; a value is not.
            value = value.to(tl.float32) * value_scale[:, None]
        else:
            weights *= value_scale[None, :]
    value = value.to(FACTORS)
    mixed = tl.dot(weights.to(FACTORS), value, mixed * shrunk[:, None], input_precision="ieee")
    return mixed, total, higher


@triton.jit
def add_sink(mixed, total, best, sink):
    """Add, per row, a token without a value whose score is `sink`."""
    sink = sink.to(tl.float32) * 1.4426950408889634  # log2(e), as all scores
    higher = tl.maximum(best, sink)
    shrunk = tl.exp2(best - higher)
    return mixed * shrunk[:, None], total * shrunk + tl.exp2(sink - higher), higher
