"""Attention of one layer by itself: decode against the memory's ceiling, prefill against that of matrix products."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from orcastream.bench.gpu.ceilings import Ceilings
from orcastream.bench.gpu.clock import median_s
from orcastream.bench.gpu.layer import Layer, Sequences, vectors
from orcastream.engine.attention import AttentionBackend, AttentionCall
from orcastream.engine.kv.layout import LayerShape

BATCHES = (1, 16, 64, 256)
CONTEXTS = (512, 4096, 32768)
PREFILLS = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement: of `share` 1 the card could do no more, by bandwidth (`bytes`) or operations (`flop`)."""

    what: str
    seconds: float
    bytes: float
    flop: float
    share: float


def measure_decode(
    backend: AttentionBackend,
    shape: LayerShape,
    cache_dtype: torch.dtype,
    ceilings: Ceilings,
    device: torch.device,
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
) -> Iterator[Timed]:
    """A token of each request of a batch, all with the same context; what does not fit into memory is left out."""
    for batch_size in batches:
        for context in contexts:
            needed = batch_size * context * _bytes_per_token(shape, cache_dtype)
            if device.type == "cuda" and needed > 0.8 * torch.cuda.mem_get_info(device)[0]:
                continue
            seconds = _seconds(backend, shape, cache_dtype, device, [context - 1] * batch_size, [1] * batch_size)
            flop = 2.0 * batch_size * context * shape.num_heads * (shape.key_size + shape.value_size)
            what = f"decode, batch {batch_size}, context {context}"
            yield Timed(what, seconds, needed, flop, needed / seconds / ceilings.bytes_per_s)


def measure_prefill(
    backend: AttentionBackend,
    shape: LayerShape,
    cache_dtype: torch.dtype,
    ceilings: Ceilings,
    device: torch.device,
    *,
    lengths: Sequence[int] = PREFILLS,
) -> Iterator[Timed]:
    """A whole prompt in one chunk."""
    for length in lengths:
        seconds = _seconds(backend, shape, cache_dtype, device, [0], [length])
        pairs = length * (length + 1) / 2
        flop = 2.0 * pairs * shape.num_heads * (shape.key_size + shape.value_size)
        moved = length * _bytes_per_token(shape, cache_dtype)
        yield Timed(f"prefill, {length}", seconds, moved, flop, flop / seconds / ceilings.flop_per_s)


def _bytes_per_token(shape: LayerShape, cache_dtype: torch.dtype) -> int:
    scales = 4 if cache_dtype.itemsize == 1 else 0
    return shape.num_kv_heads * ((shape.key_size + shape.value_size) * cache_dtype.itemsize + scales)


def _seconds(
    backend: AttentionBackend,
    shape: LayerShape,
    cache_dtype: torch.dtype,
    device: torch.device,
    cached: Sequence[int],
    lengths: Sequence[int],
) -> float:
    dtype = torch.bfloat16
    generator = torch.Generator(device).manual_seed(0)
    longest = [before + length for before, length in zip(cached, lengths, strict=True)]
    sequences = Sequences(longest, shape.window, device, 0)
    layer = Layer(backend, shape, sequences.num_blocks, cache_dtype, AttentionCall(shape.key_size**-0.5), device)
    for part in layer.cache.tensors:
        _fill(part, generator)
    sequences.skip(cached)
    batch = sequences.batch(lengths)
    plan = backend.plan(batch, dtype)
    given = vectors(shape, int(batch.offsets[-1]), dtype, device, generator)
    return median_s(lambda: backend.attend(plan, layer.cache, *given, layer.call), device)


def _fill(part: torch.Tensor, generator: torch.Generator) -> None:
    """Random numbers, head by head, so that little memory is needed beside."""
    for head in part:
        if part.dtype is torch.int8:
            head.random_(-127, 128, generator=generator)
        elif part.dtype is torch.float8_e4m3fn:
            head.copy_(torch.randn(head.shape, dtype=torch.bfloat16, device=head.device, generator=generator))
        else:
            head.normal_(generator=generator)
