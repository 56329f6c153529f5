"""The operators alone: copies, linear layers, attention."""

import statistics
import time

import torch

from orcastream.bench.floor.parts import Load
from orcastream.bench.floor.shape import Shape
from orcastream.bench.linears import Case, measure
from orcastream.engine.attention import AttentionCall, choose_backend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup, LayerShape

BLOCK_SIZE = 16
COLD_LAYERS = 8
"""Number of caches that attention alternates between, like a model's layers."""


def copy_rate() -> float:
    """Return the bytes per second of a plain copy, each byte counted once."""
    source = torch.ones(64 << 20, dtype=torch.float32)
    target = torch.empty_like(source)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    return source.nbytes / statistics.median(times)


def linear_ms(rows: int, columns: int, depth: int, dtype: torch.dtype) -> float:
    """Return the time of the fastest available implementation."""
    return min(measure(Case(rows, columns, depth), dtype, [None], 0.15).values()) * 1e3


def attention_ms(shape: Shape, load: Load, dtype: torch.dtype) -> float:
    """Return the time of all layers, measured one at a time with alternating caches."""
    device = torch.device("cpu")
    backend = choose_backend("auto", device, dtype)
    longest = load.context + load.length
    num_blocks = load.batch * (longest // BLOCK_SIZE + 2)
    layer_shape = LayerShape(shape.heads, shape.kv_heads, shape.head_size, shape.head_size)
    layers = [backend.allocate(layer_shape, num_blocks, BLOCK_SIZE, dtype, device) for _ in range(COLD_LAYERS)]
    cache = KVCache(
        [LayerGroup(None, (0,))],
        [num_blocks],
        block_size=BLOCK_SIZE,
        max_sequences=load.batch,
        max_model_len=longest,
        longest_span=longest,
        prefix_cache=False,
    )
    spans = []
    for _ in range(load.batch):
        sequence = cache.sequence_of(1)
        cache.grow(sequence, 0, longest)
        spans.append(SpanTokens(sequence, [0] * load.length, load.context, 1))
    plan = backend.plan(FlatBatch.build(spans, cache, device), dtype)
    tokens = load.batch * load.length
    query, key, value = (
        torch.randn(tokens, heads, shape.head_size).to(dtype).transpose(0, 1)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    call = AttentionCall(scale=shape.head_size**-0.5, group=0)
    times = []
    for _ in range(5):
        for layer in layers:
            began = time.perf_counter()
            backend.attend(plan, layer, query, key, value, call)
            times.append(time.perf_counter() - began)
    return statistics.median(times[len(layers) :]) * 1e3 * shape.layers
