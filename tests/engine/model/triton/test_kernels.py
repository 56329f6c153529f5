"""The kernels of a decoder against float64, over random shapes; without a GPU they are interpreted."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of the largest value: half a step of the format there, and some rounding in float32."""

DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
SEEDS = pytest.mark.parametrize("seed", range(3))


def is_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> bool:
    """Whether a result is the float64 `expected`, rounded."""
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max()
    return bool(error < (tolerance or TOLERANCE[found.dtype]))


def normalized(x: torch.Tensor, factors: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * factors.double()


@DTYPES
@SEEDS
@pytest.mark.parametrize("changed", [True, False])
def test_norms(seed: int, changed: bool, dtype: torch.dtype, triton_device: torch.device) -> None:
    from orcastream.engine.model.triton.norm import add_norm

    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    rows, width = (int(generator.integers(1, high)) for high in (5, 300))
    hidden, change = (torch.randn(rows, width, device=triton_device).to(dtype) for _ in range(2))
    factors = torch.randn(width, device=triton_device)
    total = (hidden.double() + change.double()) if changed else hidden.double()
    found = add_norm(hidden, change if changed else None, factors, 1e-5)
    assert is_near(hidden, total)
    assert is_near(found, normalized(hidden.double(), factors, 1e-5))


@DTYPES
@SEEDS
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("partial", [True, False])
def test_rotations(seed: int, partial: bool, normed: bool, dtype: torch.dtype, triton_device: torch.device) -> None:
    """Queries and keys are turned in pairs of values, the values beyond `rotary_size` and the attended ones are not."""
    from orcastream.engine.model.triton.rotary import rotate

    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    tokens, kv_heads, half = (int(generator.integers(1, high)) for high in (4, 3, 20))
    heads = kv_heads * int(generator.integers(1, 20))
    size = 2 * half + partial * int(generator.integers(1, 9))
    rows = torch.randn(tokens, (heads + 2 * kv_heads) * size, device=triton_device).to(dtype)
    angles, positions = 3 * torch.randn(7, half, device=triton_device), torch.arange(tokens, device=triton_device) + 2
    norms = torch.randn(2, size, device=triton_device) if normed else None
    before = rows.double().view(tokens, -1, size)
    turned, values = before[:, : heads + kv_heads], before[:, heads + kv_heads :]
    if norms is not None:
        factors = norms[(torch.arange(heads + kv_heads, device=triton_device) >= heads).long()]
        turned = normalized(turned, factors, 1e-6)
    numbers = torch.complex(turned[..., :half], turned[..., half : 2 * half])
    numbers = numbers * torch.exp(1j * angles.double())[positions].unsqueeze(1)
    expected = torch.cat([numbers.real, numbers.imag, turned[..., 2 * half :]], dim=-1)
    table = torch.cat([angles.cos(), angles.sin()], dim=-1)
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_size": size}
    rotate(rows, positions, table, norms, 1e-6, **sizes)
    after = rows.view(tokens, -1, size)
    assert is_near(after[:, : heads + kv_heads], expected)
    assert torch.equal(after[:, heads + kv_heads :].double(), values)


@DTYPES
@SEEDS
@pytest.mark.parametrize("activation", [0, 1], ids=["silu", "gelu"])
def test_gates(seed: int, activation: int, dtype: torch.dtype, triton_device: torch.device) -> None:
    from orcastream.engine.model.triton.gated import gated

    torch.manual_seed(seed)
    rows, size = (int(np.random.default_rng(seed).integers(1, high)) for high in (4, 2500))
    both = 4 * torch.randn(rows, 2 * size, device=triton_device)
    both[0, :2] = torch.tensor([-200.0, 200.0][: min(2, 2 * size)], device=triton_device)
    both = both.to(dtype)
    gate, up = both.double().chunk(2, dim=-1)
    active = functional.gelu(gate, approximate="tanh") if activation else functional.silu(gate)
    assert is_near(gated(both, activation), active * up)


def test_kernels_compile_for_hopper_without_spilled_registers() -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.engine.model.triton.compile_kernels", "bf16"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["kernel"] for each in found} == {"norm", "rotate", "gated"}
    assert not any(each["stack"] for each in found)
