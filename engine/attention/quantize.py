"""Keys and values in 8 bits, with a scale for each token and head."""

import torch

SCALE_DTYPE = torch.bfloat16
"""Of the range of float32, so that no scale is too large or too small for it. A scale is rounded before it is used, so
that its few digits cost nothing."""

LARGEST: dict[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The 8-bit formats, and the number that the largest value of a head becomes."""


def quantize(vectors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`vectors` `[…, size]` as numbers of `dtype` and one scale each `[…]` (symmetric, by the largest magnitude)."""
    most = LARGEST[dtype]
    wide = vectors.float()
    scales = (wide.abs().amax(dim=-1) / most).clamp_(min=torch.finfo(SCALE_DTYPE).tiny).to(SCALE_DTYPE)
    scaled = (wide / scales.float().unsqueeze(-1)).clamp_(-most, most)
    return (scaled.round_() if dtype is torch.int8 else scaled).to(dtype), scales


def dequantize(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The vectors that `quantize` was given, up to rounding, in `dtype`."""
    return numbers.to(dtype) * scales.to(dtype).unsqueeze(-1)
