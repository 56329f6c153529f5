"""Weights of bfloat16 in 12 bits compute what they compute in 16."""

import pytest
import torch

from orcastream.engine.native.linear import PANEL, PackedLinear
from orcastream.engine.native.mlp import mlp

pytestmark = pytest.mark.parametrize("instruction_set", ["amx", "avx512_bf16"], indirect=True)
MOST_ALONE = 24
ROWS = (1, 2, 3, 5, 10, 11, 12, 13, 24, 25, 40, 72, 130)
"""Through both halves of a panel at once, through one after the other, and unpacked for several blocks of rows."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def both(
    weight: torch.Tensor, instruction_set: str, bias: torch.Tensor | None = None
) -> tuple[PackedLinear, PackedLinear]:
    """Return a layer as it is packed, and with compact weights."""
    packed = PackedLinear.pack(weight, bias, instruction_set)
    compact = packed.compact()
    assert compact is not None
    assert compact.is_compact
    return packed, compact


def with_outliers(n: int, k: int) -> torch.Tensor:
    """Return normal weights, of which some are much smaller or larger, zero, negative zero, or subnormal."""
    weight = normal(n, k) * 0.02
    flat = weight.view(-1)
    for at, value in enumerate((1e-30, -3e20, 0.0, -0.0, 1e-40, 5e-12, float(torch.finfo(torch.bfloat16).max))):
        flat[at * 3001 + 17 :: 30011] = value
    return weight


@pytest.mark.parametrize(("n", "k"), [(32, 1024), (70, 1023), (45, 258), (4500, 70), (96, 5000)])
def test_weights_are_the_same_bit_by_bit(instruction_set: str, n: int, k: int) -> None:
    weight = with_outliers(n, k)
    packed, compact = both(weight, instruction_set)
    rows = torch.arange(n)
    assert torch.equal(compact.gather(rows).view(torch.int16), weight.view(torch.int16))
    assert torch.equal(compact.gather(rows, torch.float32), weight.float())
    assert compact.outliers is not None
    assert len(compact.outliers) >= weight.numel() // 30011
    assert len(compact.memory) < 0.76 * len(packed.memory) or k < PANEL * 8


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("n", "k"), [(32, 1024), (70, 1023), (45, 258), (200, 2080), (64, 9000), (3, 1)])
def test_products_are_those_of_the_packed_weights(instruction_set: str, n: int, k: int, threads: int) -> None:
    """Without outliers bit by bit, whatever the number of rows: the order of summing is the same."""
    weight = normal(n, k).clamp(-2, 2)
    weight[weight.abs() < 0.02] = 0
    packed, compact = both(weight, instruction_set, normal(n, seed=1))
    assert compact.outliers is not None
    assert len(compact.outliers) == 0
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for rows in ROWS:
            x = normal(rows, k, seed=rows)
            assert torch.equal(compact(x, torch.float32), packed(x, torch.float32)), rows
            assert torch.equal(compact(x), packed(x)), rows
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", ROWS)
def test_outliers_count(instruction_set: str, rows: int) -> None:
    """Each adds its product: of few rows apart from the panel, of many within it."""
    n, k = 70, 1023
    weight = normal(n, k) * 0.02
    for column in range(n):  # each of another size
        weight[column, column * 13 % k] = -(2.0 ** (column - 30))
        weight[column, (column * 7 + 5) % k] = 2.0 ** (20 - column)
    packed, compact = both(weight, instruction_set)
    assert compact.outliers is not None
    assert len(compact.outliers) >= n
    x = normal(rows, k, seed=rows)
    found = compact(x, torch.float32)
    if rows > MOST_ALONE:
        assert torch.equal(found, packed(x, torch.float32))
    wide, wide_weight = x.double(), weight.double()
    bound = 1e-5 * (wide.abs() @ wide_weight.abs().T)
    assert ((found.double() - wide @ wide_weight.T).abs() <= bound).all()


def test_a_gated_mlp(instruction_set: str) -> None:
    """As one operator, with panels of two halves that are unpacked in turn."""
    hidden, inner = 72, 320
    gate_up, down = (
        both(weight.clamp(-2, 2), instruction_set) for weight in (normal(2 * inner, hidden), normal(hidden, inner))
    )
    for rows in (*ROWS, 530):
        x = normal(rows, hidden, seed=rows)
        packed, compact = (mlp(gate_up[i], down[i], x, "silu", instruction_set) for i in range(2))
        assert packed is not None
        assert compact is not None
        torch.testing.assert_close(compact.float(), packed.float(), rtol=2**-7, atol=1e-2)
    assert mlp(gate_up[1], down[0], normal(3, hidden), "silu", instruction_set) is None


def test_a_layer_that_adopts_weights_keeps_its_address(instruction_set: str) -> None:
    """Operators hold the address, and compute with the other weights from then on."""
    weight, bias = normal(70, 300), normal(70, seed=1)
    packed, compact = both(weight, instruction_set, bias)
    x, address = normal(4, 300, seed=2), packed.address
    expected = compact(x)
    packed.adopt(compact)
    del compact
    assert packed.address == address
    assert packed.is_compact
    assert torch.equal(packed(x), expected)
    assert packed.compact() is None
    with pytest.raises(ValueError, match="compact weights"):
        PackedLinear.merge([packed, packed])


def test_a_layer_is_made_compact_in_memory_that_another_left(instruction_set: str) -> None:
    """Which held other weights before, and may be larger than needed."""
    packed, compact = both(with_outliers(70, 1023), instruction_set)
    left, asked = torch.full((len(packed.memory),), 0xA5, dtype=torch.uint8), []

    def left_memory(num_bytes: int) -> torch.Tensor:
        asked.append(num_bytes)
        return left

    again = packed.compact(left_memory)
    assert again is not None
    assert asked == [len(compact.memory)]
    assert again.memory.data_ptr() == left.data_ptr()
    assert torch.equal(again.memory, compact.memory)
    assert torch.equal(again(normal(5, 1023)), compact(normal(5, 1023)))


def test_weights_that_do_not_fit_stay_as_they_are(instruction_set: str) -> None:
    """If their upper bytes have many values, or the instruction set has no product for them."""
    spread = torch.randint(-(2**15), 2**15, (64, 256), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    assert PackedLinear.pack(spread.view(torch.bfloat16), instruction_set=instruction_set).compact() is None
    assert PackedLinear.pack(torch.zeros(PANEL, 8), instruction_set=instruction_set).compact() is None
    assert PackedLinear.pack(normal(PANEL, 8), instruction_set="avx2").compact() is None
