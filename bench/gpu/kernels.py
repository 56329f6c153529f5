"""Attention of a single layer: decode relative to the memory limit, prefill relative to the matrix product limit."""

from collections.abc import Sequence
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


_SHARE = 0.8
"""Share of the free memory for the cache of a measurement."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests with the given numbers of `cached` tokens, each of which computes the next `lengths` tokens."""

    what: str
    cached: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def decodes(self) -> bool:
        """Whether each request computes one token."""
        return max(self.lengths) == 1

    @property
    def context_tokens(self) -> int:
        """Tokens in the cache at the end."""
        return sum(self.cached) + sum(self.lengths)

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that it attends to."""
        spans = zip(self.cached, self.lengths, strict=True)
        return sum(length * cached + length * (length + 1) / 2 for cached, length in spans)


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement: at `share` 1 the card is at its limit, of bandwidth (`bytes`) or operations (`flop`)."""

    what: str
    seconds: float
    bytes: float
    flop: float
    share: float


def decodes(batches: Sequence[int] = BATCHES, contexts: Sequence[int] = CONTEXTS) -> list[Load]:
    """Return loads with one token of each request of a batch, all with the same context."""
    return [
        Load(f"decode, batch {batch}, context {context}", (context - 1,) * batch, (1,) * batch)
        for batch in batches
        for context in contexts
    ]


def prefills(lengths: Sequence[int] = PREFILLS) -> list[Load]:
    """Return loads with a whole prompt in one chunk each."""
    return [Load(f"prefill, {length}", (0,), (length,)) for length in lengths]


def measure(
    backend: AttentionBackend,
    shape: LayerShape,
    cache_dtype: torch.dtype,
    ceilings: Ceilings,
    device: torch.device,
    load: Load,
) -> Timed:
    """Measure one load. Raises ValueError if the device lacks memory for its cache."""
    moved = load.context_tokens * _bytes_per_token(shape, cache_dtype)
    if device.type == "cuda" and moved > (room := _SHARE * torch.cuda.mem_get_info(device)[0]):
        raise ValueError(f"the cache takes {moved / 2**30:.1f} GiB, and {room / 2**30:.1f} are free for it")
    seconds = _seconds(backend, shape, cache_dtype, device, load)
    flop = 2.0 * load.pairs * shape.num_heads * (shape.key_size + shape.value_size)
    share = moved / seconds / ceilings.bytes_per_s if load.decodes else flop / seconds / ceilings.flop_per_s
    return Timed(load.what, seconds, moved, flop, share)


def _bytes_per_token(shape: LayerShape, cache_dtype: torch.dtype) -> int:
    scales = 4 if cache_dtype.itemsize == 1 else 0
    return shape.num_kv_heads * ((shape.key_size + shape.value_size) * cache_dtype.itemsize + scales)


def _seconds(
    backend: AttentionBackend, shape: LayerShape, cache_dtype: torch.dtype, device: torch.device, load: Load
) -> float:
    dtype = torch.bfloat16
    generator = torch.Generator(device).manual_seed(0)
    longest = [before + length for before, length in zip(load.cached, load.lengths, strict=True)]
    sequences = Sequences(longest, shape.window, device, 0)
    layer = Layer(backend, shape, sequences.num_blocks, cache_dtype, AttentionCall(shape.key_size**-0.5), device)
    for part in layer.cache.tensors:
        _fill(part, generator)
    sequences.skip(load.cached)
    batch = sequences.batch(load.lengths)
    plan = backend.plan(batch, dtype)
    given = vectors(shape, int(batch.offsets[-1]), dtype, device, generator)
    return median_s(lambda: backend.attend(plan, layer.cache, *given, layer.call), device)


def _fill(part: torch.Tensor, generator: torch.Generator) -> None:
    """Fill with random numbers, head by head, so that little additional memory is needed."""
    for head in part:
        if part.dtype is torch.int8:
            head.random_(-127, 128, generator=generator)
        elif part.dtype is torch.float8_e4m3fn:
            head.copy_(torch.randn(head.shape, dtype=torch.bfloat16, device=head.device, generator=generator))
        else:
            head.normal_(generator=generator)
