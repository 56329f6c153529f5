"""The gated MLP as one operator, against the operators that it consists of."""

import pytest
import torch

from orcastream.engine.native.elementwise import ActivationName, gated
from orcastream.engine.native.linear import PackedLinear
from orcastream.engine.native.mlp import mlp

HIDDEN = 72
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return normally distributed numbers, the same for a shape each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def layers(
    inner: int, dtype: torch.dtype, instruction_set: str, bias: bool = False
) -> tuple[PackedLinear, PackedLinear]:
    """Return the merged gate and up layer, and the down layer."""
    shapes = (2 * inner, HIDDEN), (HIDDEN, inner)
    first, second = (
        PackedLinear.pack(random(*shape, dtype=dtype), random(shape[0], dtype=dtype) if bias else None, instruction_set)
        for shape in shapes
    )
    return first, second


def one_by_one(
    gate_up: PackedLinear, down: PackedLinear, x: torch.Tensor, activation: ActivationName, instruction_set: str
) -> torch.Tensor:
    gate, up = gate_up(x).chunk(2, dim=-1)
    return down(gated(gate, up, activation, instruction_set))


@DTYPES
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("rows", "inner"), [(1, 32), (2, 96), (7, 320), (13, 64), (40, 2080), (300, 96), (1100, 64), (530, 1600)]
)
def test_results_equal_those_of_its_parts(
    instruction_set: str, rows: int, inner: int, threads: int, dtype: torch.dtype
) -> None:
    """Bit by bit; with more rows than gates are buffered for, and with fewer panels than threads."""
    gate_up, down = layers(inner, dtype, instruction_set)
    x = random(rows, HIDDEN, dtype=dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = mlp(gate_up, down, x, "silu", instruction_set)
        expected = one_by_one(gate_up, down, x, "silu", instruction_set)
    finally:
        torch.set_num_threads(before)
    assert found is not None
    assert torch.equal(found, expected)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_activations_and_biases(instruction_set: str, activation: ActivationName, dtype: torch.dtype) -> None:
    gate_up, down = layers(64, dtype, instruction_set, bias=True)
    x = random(1, 5, HIDDEN, dtype=dtype)
    found = mlp(gate_up, down, x, activation, instruction_set)
    assert found is not None
    assert torch.equal(found, one_by_one(gate_up, down, x, activation, instruction_set))


def test_if_it_does_not_fit_nothing_is_computed(instruction_set: str) -> None:
    x = random(5, HIDDEN, dtype=torch.float32)
    odd = layers(40, torch.float32, instruction_set)
    assert mlp(*odd, x, "silu", instruction_set) is None
    weights = random(128, HIDDEN, dtype=torch.float32), random(HIDDEN, 64, dtype=torch.float32)
    rounded = [PackedLinear.quantize(weight, instruction_set=instruction_set) for weight in weights]
    assert mlp(rounded[0], rounded[1], x, "silu", instruction_set) is None
    gate_up, down = layers(64, torch.float32, instruction_set)
    assert mlp(gate_up, down, x.bfloat16(), "silu", instruction_set) is None
