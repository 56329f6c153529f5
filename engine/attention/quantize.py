"""Quantizes keys and values to 8 bits, with a scale for each token and head."""

import torch

SCALE_DTYPE = torch.bfloat16
"""Has the range of float32, so that every scale is representable. A scale is rounded before it is used, so its low
precision costs no accuracy."""

LARGEST: dict[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The 8-bit formats, and the value to which the largest magnitude of a head is scaled."""


def quantize(vectors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `vectors` `[…, size]` in `dtype`, and one scale each `[…]` (symmetric, by the largest magnitude)."""
    most = LARGEST[dtype]
    wide = vectors.float()
    scales = (wide.abs().amax(dim=-1) / most).clamp_(min=torch.finfo(SCALE_DTYPE).tiny).to(SCALE_DTYPE)
    scaled = (wide / scales.float().unsqueeze(-1)).clamp_(-most, most)
    return (scaled.round_() if dtype is torch.int8 else scaled).to(dtype), scales


def dequantize(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the original vectors of `quantize`, up to rounding, in `dtype`."""
    return numbers.to(dtype) * scales.to(dtype).unsqueeze(-1)
