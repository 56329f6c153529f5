"""Keys and values in 8 bits."""

import pytest
import torch

from orcastream.engine.attention import TorchBackend
from orcastream.engine.attention.quantize import dequantize, quantize
from orcastream.engine.kv.layout import LayerShape

FORMATS = [(torch.int8, 0.5 / 127), (torch.float8_e4m3fn, 1 / 16)]


@pytest.mark.parametrize(("dtype", "error"), FORMATS, ids=str)
def test_the_error_is_bounded_by_the_heads_maximum(dtype: torch.dtype, error: float) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(3, 50, 64) * torch.logspace(-6, 6, 50).unsqueeze(-1)
    numbers, scales = quantize(vectors, dtype)
    back = dequantize(numbers, scales, torch.float32)
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    assert ((back - vectors).abs() <= 1.01 * error * largest).all()
    assert scales.shape == (3, 50)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_zeros_stay_zeros_and_nan_stays_nan(dtype: torch.dtype) -> None:
    assert dequantize(*quantize(torch.zeros(2, 4), dtype), torch.float32).tolist() == [[0.0] * 4] * 2
    assert dequantize(*quantize(torch.full((1, 4), torch.nan), dtype), torch.float32).isnan().all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_memory_is_half_of_bfloat16(dtype: torch.dtype) -> None:
    shape, cpu = LayerShape(16, 8, 128, 128), torch.device("cpu")
    sizes = {
        kind: sum(part.nbytes for part in TorchBackend().allocate(shape, 10, 16, kind, cpu).tensors)
        for kind in (dtype, torch.bfloat16)
    }
    assert 0.5 < sizes[dtype] / sizes[torch.bfloat16] < 0.51
