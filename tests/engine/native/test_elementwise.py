"""RMSNorm, gated activations and rotary positions against float64."""

import pytest
import torch
from torch.nn import functional as F

from orcastream.engine.native.elementwise import ActivationName, gated, rms_norm, rotate

ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 2e-6}
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed numbers, the same for a shape each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return RMSNorm by its definition, in float64."""
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


@DTYPES
@pytest.mark.parametrize("shape", [(7,), (1, 33), (1, 5, 1024), (1, 5, 3, 64), (2, 3, 4, 40)])
def test_rms_norm(instruction_set: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """For vectors, tokens and heads."""
    x, weight = random(*shape, dtype=dtype), 1 + random(shape[-1])
    found = rms_norm(x, weight, 1e-6, instruction_set=instruction_set)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), normed(x, weight, 1e-6), rtol=ROUNDING[dtype], atol=1e-6)


@DTYPES
def test_rms_norm_of_a_slice(instruction_set: str, dtype: torch.dtype) -> None:
    """The heads of a merged projection, which are not contiguous."""
    merged = random(1, 6, 4 * 16 + 20, dtype=dtype)
    x = merged[..., 8:72].view(1, 6, 4, 16)
    found = rms_norm(x, torch.ones(16), 1e-6, instruction_set=instruction_set)
    torch.testing.assert_close(found.double(), normed(x, torch.ones(16), 1e-6), rtol=ROUNDING[dtype], atol=1e-6)


@DTYPES
def test_rms_norm_with_a_residual(instruction_set: str, dtype: torch.dtype) -> None:
    """The sum is stored, rounded as usual, and normed."""
    x, residual, weight = random(4, 96, dtype=dtype), random(4, 96, dtype=dtype).flip(0).contiguous(), random(96)
    expected = x + residual
    found = rms_norm(x, weight, 1e-5, residual, instruction_set)
    assert torch.equal(residual, expected)
    torch.testing.assert_close(found.double(), normed(expected, weight, 1e-5), rtol=ROUNDING[dtype], atol=1e-6)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "relu", "squared_relu"])
@pytest.mark.parametrize("rows", [1, 3, 400])
def test_gated(instruction_set: str, rows: int, activation: ActivationName, dtype: torch.dtype) -> None:
    """Halves of one matrix; including values far from zero."""
    both = 8 * random(rows, 2 * 200, dtype=dtype)
    gate, up = both.chunk(2, dim=-1)
    wide = gate.double()
    expected = {
        "silu": lambda: F.silu(wide),
        "gelu_tanh": lambda: F.gelu(wide, approximate="tanh"),
        "gelu": lambda: F.gelu(wide),
        "relu": lambda: F.relu(wide),
        "squared_relu": lambda: F.relu(wide).square(),
    }[activation]() * up.double()
    found = gated(gate, up, activation, instruction_set)
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[dtype] * 2, atol=2e-5)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "relu", "squared_relu"])
def test_gated_by_numbers_of_any_size(instruction_set: str, activation: ActivationName, dtype: torch.dtype) -> None:
    """Large negative ones close the gate altogether, however large they are."""
    sizes = [1e-30, 1.0, 50.0, 88.3, 88.5, 1e4, 1e13, 1e20, 1e37, 1e38]
    gate = torch.tensor([*sizes, *(-size for size in sizes), 0.0, torch.inf, torch.nan]).to(dtype)
    wide = gate.double()
    expected = {
        "silu": lambda: F.silu(wide),
        "gelu_tanh": lambda: F.gelu(wide, approximate="tanh"),
        "gelu": lambda: F.gelu(wide),
        "relu": lambda: F.relu(wide),
        "squared_relu": lambda: F.relu(wide).square(),
    }[activation]()
    found = gated(gate.view(1, -1), torch.ones_like(gate).view(1, -1), activation, instruction_set)[0]
    if activation == "gelu":
        found, expected = found[:-2], expected[:-2]  # infinity depends on how 1 + erf is multiplied
    expected = expected.to(dtype).double()  # a square may be too large
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[dtype] * 2, atol=2e-5, equal_nan=True)


@DTYPES
def test_gated_numbers_that_lie_across_the_memory(instruction_set: str, dtype: torch.dtype) -> None:
    gate, up = random(70, 5, dtype=dtype), random(5, 70, dtype=dtype)
    expected = gated(gate.T.contiguous(), up, "silu", instruction_set)
    assert torch.equal(gated(gate.T, up, "silu", instruction_set), expected)
    assert torch.equal(
        gated(up, gate.T, "silu", instruction_set), gated(up, gate.T.contiguous(), "silu", instruction_set)
    )


@DTYPES
@pytest.mark.parametrize("width", [32, 16])
def test_rotate(instruction_set: str, width: int, dtype: torch.dtype) -> None:
    """For a whole head, or its first part."""
    x = random(5, 3, 32, dtype=dtype)
    angles = torch.outer(torch.arange(5.0), random(width // 2)).repeat(1, 2)
    wide = x.double()
    low, high = wide[..., : width // 2], wide[..., width // 2 : width]
    turned = torch.cat([-high, low, wide[..., width:]], dim=-1)
    expected = wide.clone()
    expected[..., :width] *= angles.cos().double().unsqueeze(1)
    expected[..., :width] += turned[..., :width] * angles.sin().double().unsqueeze(1)
    rotate(x, angles.cos(), angles.sin(), instruction_set)
    torch.testing.assert_close(
        x.double(), expected, rtol=ROUNDING[dtype], atol=1e-6 if dtype == torch.float32 else 1e-2
    )
