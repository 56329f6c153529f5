"""Attention of one tile of queries to some neighboring keys and values: scores and online softmax.

Online softmax (Milakov and Gimelshein, arXiv 1805.02867) as in FlashAttention (arXiv 2205.14135). Scores are multiplied
by log2(e), so that exp2, which the hardware provides, can be used.
"""

import triton
import triton.language as tl


@triton.jit
def slots_of(table, positions, inside, BLOCK_SIZE: tl.constexpr):
    """Return the cache slots of `positions` by a request's block table; arbitrary for those not `inside`."""
    places = table + positions // BLOCK_SIZE
    blocks = tl.load(places) if inside is None else tl.load(places, mask=inside, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def load_rows(base, slots, inside, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return `[len(slots), BLOCK]` of one head's keys or values; zeros beyond SIZE and if not `inside`."""
    columns = tl.arange(0, BLOCK)
    places = base + slots[:, None] * SIZE + columns[None, :]
    if inside is None and BLOCK == SIZE:
        rows = tl.load(places)
    elif inside is None:
        rows = tl.load(places, mask=(columns < SIZE)[None, :], other=0.0)
    elif BLOCK == SIZE:
        rows = tl.load(places, mask=inside[:, None], other=0.0)
    else:
        rows = tl.load(places, mask=inside[:, None] & (columns < SIZE)[None, :], other=0.0)
    return rows


@triton.jit
def load_scales(base, slots, inside):
    """Return one float32 scale per slot; 0 if not `inside`."""
    scales = tl.load(base + slots) if inside is None else tl.load(base + slots, mask=inside, other=0.0)
    return scales.to(tl.float32)


@triton.jit
def widened(numbers, FORMAT: tl.constexpr):
    """Return `numbers` of the cache in FORMAT; 8-bit ones exactly.

    Hopper converts float16 to bfloat16, and int8 to float32, at an eighth of its speed for other conversions, so these
    two take another way.
    """
    if numbers.dtype == tl.float8e4nv:
        numbers = numbers.to(tl.float16).to(tl.float32)
    elif numbers.dtype == tl.int8 and tl.float32 == FORMAT:
        # 1.5 * 2^23, from where a float32's last bit is 1.
        numbers = (numbers.to(tl.int32) + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0
    return numbers.to(FORMAT)


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
    `inside` marks positions that exist, `visible` (of a shape that broadcasts to the scores) those that count; None:
    all do. `scale` and `cap` are those of `score_factors`.
    """
    slots = slots_of(table, positions, inside, BLOCK_SIZE)
    key = widened(load_rows(keys, slots, inside, KEY_SIZE, BLOCK_K), query.dtype)
    products = tl.dot(query, tl.trans(key), input_precision="ieee")
    if QUANTIZED:
        products *= load_scales(key_scales, slots, inside)[None, :]
    if CAPPED:
        # Beyond 100, tanh is 1.
        products = cap * (1.0 - 2.0 / (tl.exp2(tl.minimum(products * scale, 100.0)) + 1.0))
        scale = 1.0
    if visible is not None:
        products = tl.where(visible, products, float("-inf"))
    higher = tl.maximum(best, tl.max(products, axis=1) * scale)
    # A row that has seen nothing yet has -inf, which must not be subtracted from itself.
    pivot = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(products * scale - pivot[:, None])
    shrunk = tl.exp2(best - pivot)
    total = total * shrunk + tl.sum(weights, axis=1)
    value = load_rows(values, slots, inside, VALUE_SIZE, BLOCK_V)
    if QUANTIZED:
        value_scale = load_scales(value_scales, slots, inside)
        # The smaller side is multiplied; in float16 the values, because a weight times a scale can be too small for it.
        if tl.float16 == FACTORS or query.shape[0] >= BLOCK_V:
            value = (widened(value, tl.float32) * value_scale[:, None]).to(FACTORS)
        else:
            weights *= value_scale[None, :]
    mixed = tl.dot(weights.to(FACTORS), widened(value, FACTORS), mixed * shrunk[:, None], input_precision="ieee")
    return mixed, total, higher


@triton.jit
def add_sink(mixed, total, best, sink):
    """Add, per row, a token without a value whose score is `sink`."""
    sink = sink.to(tl.float32) * 1.4426950408889634  # log2(e), as all scores
    higher = tl.maximum(best, sink)
    shrunk = tl.exp2(best - higher)
    return mixed * shrunk[:, None], total * shrunk + tl.exp2(sink - higher), higher
