"""The kernel that draws tokens: checked against the sampler on the CPU, and measured."""

from dataclasses import dataclass

import torch

from orcastream.bench.gpu.ceilings import Ceilings
from orcastream.bench.gpu.clock import median_s
from orcastream.engine.sampling.drawing import Draw, draw_from, draw_on_device, laid_out, tokens_of
from orcastream.engine.sampling.filters import DrawParams
from orcastream.engine.sampling.sampler import SamplingRow, sample
from orcastream.schemas.sampling import SamplingParams

VOCAB = 151_936
"""Of Qwen3."""

BATCHES = (1, 16, 64, 256)

_TINY_VOCAB = 8_500
"""Just wide enough for draws that are repeated instead of restricted."""

_MOST_DIFFERENT = 0.02
"""Share of draws that may take another token because the device rounds in another way."""

_MIXED = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    SamplingParams(temperature=1.5, min_p=0.05),
)

FILTERS = {
    "no filter": _MIXED[1],
    "top_p 0.9": _MIXED[2],
    "top_k 20, top_p 0.95": _MIXED[3],
}


@dataclass(frozen=True, slots=True)
class CheckedDraws:
    """`error` is the share of draws with another token than on the CPU."""

    name: str
    error: float

    @property
    def right(self) -> bool:
        """Whether rounding explains the difference."""
        return self.error <= _MOST_DIFFERENT


@dataclass(frozen=True, slots=True)
class TimedDraws:
    """`share` is the time of one read of the logits at full bandwidth, relative to `seconds`."""

    seconds: float
    share: float


def check_draws(dtype: torch.dtype, device: torch.device, seed: int, tiny: bool) -> CheckedDraws:
    """Draw with all kinds of filters from random logits, peaked and flat ones."""
    rows, vocab = (5, _TINY_VOCAB) if tiny else (250, VOCAB)
    logits = _logits(rows, vocab, dtype, torch.device("cpu"), seed)
    wanted = [SamplingRow(_MIXED[row % len(_MIXED)], seed + row, row) for row in range(rows)]
    found = tokens_of(draw_on_device(logits.to(device), _draws([each.params for each in wanted], seed)))
    expected = [each.token for each in sample(logits, wanted)]
    different = sum(own != other for own, other in zip(found, expected, strict=True))
    return CheckedDraws(f"draws of {rows} rows of {vocab:,} {str(dtype).removeprefix('torch.')}", different / rows)


def measure_draws(params: SamplingParams, batch: int, ceilings: Ceilings, device: torch.device) -> TimedDraws:
    """Measure one draw per row of a batch."""
    logits = _logits(batch, VOCAB, torch.bfloat16, device, 0)
    draws = laid_out(_draws([params] * batch, 0), device)
    seconds = median_s(lambda: draw_from(logits, *draws), device)
    return TimedDraws(seconds, logits.nbytes / seconds / ceilings.bytes_per_s)


def _draws(params: list[SamplingParams], seed: int) -> list[Draw]:
    return [Draw(row, row, DrawParams.of(each, seed + row)) for row, each in enumerate(params)]


def _logits(rows: int, vocab: int, dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    spreads = torch.tensor([0.5, 2.0, 4.0], device=device).repeat(-(-rows // 3))[:rows, None]
    return (torch.randn(rows, vocab, device=device, generator=generator) * spreads).to(dtype)
