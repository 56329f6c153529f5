"""Check of every kernel against the reference in float32."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orcastream.bench.gpu.layer import Layer, Sequences, vectors
from orcastream.engine.attention import AttentionBackend, AttentionCall, TorchBackend
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.model.runner import cache_dtype_name

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Maximum allowed difference, relative to the largest output."""

_ITERATIONS = ((37, 130, 5, 1), (1, 40, 1, 0), (1, 1, 1, 300), (1, 1, 0, 1))
"""Tokens of four requests: prefill, chunks with cached context mixed with decodes, and decodes alone."""

_TINY = ((9, 1), (1, 6))


@dataclass(frozen=True, slots=True)
class Case:
    """One computation and its settings."""

    shape: LayerShape
    dtype: torch.dtype
    cache_dtype: torch.dtype
    softcap: float | None = None
    sinks: bool = False

    @property
    def name(self) -> str:
        """One line."""
        shape, names = self.shape, [cache_dtype_name(each) for each in (self.dtype, self.cache_dtype)]
        parts = [
            f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.key_size}/{shape.value_size}",
            names[0] if names[0] == names[1] else f"{names[0]}, cache {names[1]}",
            *([f"window {shape.window}"] if shape.window else []),
            *([f"soft cap {self.softcap:g}"] if self.softcap else []),
            *(["sinks"] if self.sinks else []),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Checked:
    """A case's deviation from the reference: `error` is relative to the largest output."""

    case: Case
    error: float

    @property
    def right(self) -> bool:
        """Whether the deviation is within rounding; NaN is wrong."""
        return self.error <= TOLERANCE[self.case.dtype]


def cases(tiny: bool) -> list[Case]:
    """Return all cases; `tiny` for an interpreter on a CPU."""
    bfloat16, float16, float32 = torch.bfloat16, torch.float16, torch.float32
    fp8, int8 = torch.float8_e4m3fn, torch.int8
    if tiny:
        small = LayerShape(4, 2, 16, 16)
        return [
            Case(small, float32, float32),
            Case(LayerShape(6, 2, 8, 5, window=7), bfloat16, bfloat16, softcap=5.0, sinks=True),
            Case(small, bfloat16, fp8),
            Case(small, float16, int8),
        ]
    grouped = LayerShape(32, 8, 128, 128)
    found = [Case(grouped, dtype, dtype) for dtype in (bfloat16, float16, float32)]
    found += [Case(grouped, bfloat16, cache) for cache in (fp8, int8)]
    found += [
        Case(LayerShape(heads, kv_heads, size, size), bfloat16, bfloat16)
        for heads, kv_heads, size in ((16, 16, 64), (14, 2, 64), (12, 4, 80), (32, 8, 96), (8, 4, 256), (71, 1, 64))
    ]
    found += [
        Case(LayerShape(16, 16, 192, 128), bfloat16, bfloat16),
        Case(LayerShape(16, 8, 256, 256, window=100), bfloat16, bfloat16, softcap=50.0),
        Case(LayerShape(64, 8, 64, 64, window=128), bfloat16, bfloat16, sinks=True),
        Case(LayerShape(64, 8, 64, 64), bfloat16, fp8, sinks=True),
        Case(LayerShape(32, 8, 128, 128, window=33), bfloat16, int8),
    ]
    return found


def check(backend: AttentionBackend, case: Case, device: torch.device, seed: int, tiny: bool) -> Checked:
    """Compute a case over several iterations, each with the cache of the previous ones."""
    return Checked(case, _error(backend, case, device, seed, _TINY if tiny else _ITERATIONS))


def _error(
    backend: AttentionBackend, case: Case, device: torch.device, seed: int, iterations: Sequence[Sequence[int]]
) -> float:
    generator = torch.Generator(device).manual_seed(seed)
    shape = case.shape
    sinks = torch.randn(shape.num_heads, device=device, generator=generator) if case.sinks else None
    call = AttentionCall(shape.key_size**-0.5, softcap=case.softcap, sinks=sinks)
    longest = [sum(column) for column in zip(*iterations, strict=True)]
    sequences = Sequences(longest, shape.window, device, seed)
    own, reference = (
        Layer(each, shape, sequences.num_blocks, case.cache_dtype, call, device) for each in (backend, TorchBackend())
    )
    errors = []
    for lengths in iterations:
        batch = sequences.batch(lengths)
        given = vectors(shape, int(batch.offsets[-1]), case.dtype, device, generator)
        found = own.attend(batch, *given).float()
        expected = reference.attend(batch, *(each.float() for each in given))
        errors.append((found - expected).abs().max() / expected.abs().max())
    return float(torch.stack(errors).max())  # NaN if any is NaN
