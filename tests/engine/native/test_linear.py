"""Packed linear layers against a product in float64."""

import pytest
import torch

from orcastream.engine.native.linear import PANEL, PackedLinear

SHAPES = [
    (1, 32, 32),
    (3, 70, 65),
    (5, 1, 1),
    (8, 33, 63),
    (12, 64, 130),
    (13, 320, 1024),
    (16, 64, 128),
    (33, 100, 96),
    (34, 70, 8256),
    (7, 4500, 70),
    (40, 4500, 70),
    (64, 96, 128),
    (70, 45, 257),
    (110, 96, 256),
    (300, 160, 2080),
    (520, 1700, 1100),
]
"""m, n, k; the last ones need several blocks of rows and parts of the depth, and the very last of columns, too. Of
4,500 columns few rows are written in several pieces."""


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x with its own row stride, weight, bias."""
    generator = torch.Generator().manual_seed(m * n * k)
    x = torch.randn(m, k + 3, generator=generator).to(dtype)[:, :k]
    weight, bias = torch.randn(n, k, generator=generator), torch.randn(n, generator=generator)
    return x, weight.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product(instruction_set: str, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Up to the rounding of float32 sums, and of the output."""
    x, weight, bias = operands(m, n, k, dtype)
    expected = x.double() @ weight.double().T
    packed = PackedLinear.pack(weight, instruction_set=instruction_set)
    biased = PackedLinear.pack(weight, bias, instruction_set)
    scale = k**0.5
    torch.testing.assert_close(packed(x, torch.float32).double(), expected, rtol=1e-5, atol=1e-5 * scale)
    found = biased(x)
    assert found.dtype == dtype
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), expected + bias.double(), rtol=rounding, atol=1e-5 * scale)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("m", "n"), [(1, 96), (7, 40), (300, 96), (1, 20)])
def test_any_number_of_threads_computes_the_same(instruction_set: str, threads: int, m: int, n: int) -> None:
    """Including more threads than panels, and threads that share rows."""
    x, weight, _ = operands(m, n, 64, torch.bfloat16)
    packed = PackedLinear.pack(weight, instruction_set=instruction_set)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = packed(x)
        torch.set_num_threads(threads)
        assert torch.equal(packed(x), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_does_not_depend_on_the_others_but_for_rounding(instruction_set: str, dtype: torch.dtype) -> None:
    """Whichever kernel computes that number of rows."""
    x, weight, _ = operands(100, 96, 96, dtype)
    packed = PackedLinear.pack(weight, instruction_set=instruction_set)
    together = packed(x, torch.float32)
    for rows in (1, 2, 7, 8, 15, 31, 50, 64, 65):
        if instruction_set == "amx" and dtype is torch.bfloat16:  # one kernel, and one order, for all of them
            assert torch.equal(packed(x[:rows], torch.float32), together[:rows])
        torch.testing.assert_close(packed(x[:rows], torch.float32), together[:rows], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_in_8_bits_a_row_does_not_depend_on_the_others(instruction_set: str, dtype: torch.dtype) -> None:
    """Bit by bit, where products are summed exactly."""
    if instruction_set not in ("amx", "avx512_bf16", "avx512_vnni"):
        pytest.skip("products of 8 bits are not summed exactly")
    x, weight, _ = operands(100, 96, 1030, dtype)
    packed = PackedLinear.quantize(weight, instruction_set=instruction_set)
    together = packed(x, torch.float32)
    for rows in (1, 2, 7, 8, 15, 31, 50, 64, 65):
        assert torch.equal(packed(x[:rows], torch.float32), together[:rows])


@pytest.mark.parametrize(("few", "many"), [(20, 24), (60, 72)])
def test_widened_weights_for_many_rows_give_the_same_results(instruction_set: str, few: int, many: int) -> None:
    """Bit by bit: whole blocks of rows, of 4 or 12, five without and six with it."""
    x, weight, _ = operands(many, 70, 257, torch.bfloat16)
    packed = PackedLinear.pack(weight, instruction_set=instruction_set)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(packed(x[:few], torch.float32), packed(x, torch.float32)[:few])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gather_returns_rows_of_the_weight(instruction_set: str, dtype: torch.dtype) -> None:
    """Bit by bit, in the shape of the ids; ids out of range are refused."""
    _, weight, _ = operands(1, 70, 45, dtype)
    packed = PackedLinear.pack(weight, instruction_set=instruction_set)
    ids = torch.tensor([[0, 69, 31], [32, 5, 0]])
    assert torch.equal(packed.gather(ids), weight[ids])
    with pytest.raises(IndexError, match="allowed: 0 to 69"):
        packed.gather(torch.tensor([70]))


def test_merged_layers_compute_side_by_side(instruction_set: str) -> None:
    """With a bias even if only one layer has one."""
    x, first, bias = operands(9, 2 * PANEL, 80, torch.bfloat16)
    _, second, _ = operands(9, 17, 80, torch.bfloat16)
    parts = [PackedLinear.pack(first, bias, instruction_set), PackedLinear.pack(second, None, instruction_set)]
    merged = PackedLinear.merge(parts)
    assert torch.equal(merged(x), torch.cat([part(x) for part in parts], dim=-1))
    with pytest.raises(ValueError, match="multiples of 32"):
        PackedLinear.merge(parts[::-1])


def test_infinity_and_nan_propagate(instruction_set: str) -> None:
    """NaN in a row makes that row NaN, and no other."""
    x, weight, _ = operands(20, 40, 64, torch.bfloat16)
    packed = PackedLinear.pack(weight, instruction_set=instruction_set)
    x = x.clone()
    x[3, 5] = torch.nan
    for each in (packed, PackedLinear.quantize(weight, instruction_set=instruction_set)):
        found = each(x)
        assert found[3].isnan().all()
        assert not found[[0, 1, 2, *range(4, 20)]].isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product_in_int8(instruction_set: str, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Within half a step of each factor."""
    x, weight, bias = operands(m, n, k, dtype)
    packed = PackedLinear.quantize(weight, bias, instruction_set)
    wide, wide_weight = x.double(), weight.double()
    x_steps, weight_steps = (each.abs().amax(1, keepdim=True) / 127 for each in (wide, wide_weight))
    bound = 0.51 * (x_steps * wide_weight.abs().sum(1) + wide.abs().sum(1, keepdim=True) * weight_steps.T)
    bound += 0.26 * k * x_steps * weight_steps.T + 1e-5
    error = packed(x, torch.float32).double() - (wide @ wide_weight.T + bias.double())
    assert (error.abs() <= bound).all()
    typical = error.norm() / (wide @ wide_weight.T).norm()
    assert typical < 0.02 or k == 1


def test_whole_numbers_are_exact_in_int8(instruction_set: str) -> None:
    """If 127 is among them, nothing is rounded: any mistake in signs, offsets or padding is visible."""
    generator = torch.Generator().manual_seed(0)
    for m, n, k in SHAPES:
        x = torch.randint(-127, 128, (m, k), generator=generator).float()
        weight = torch.randint(-127, 128, (n, k), generator=generator).float()
        x[:, 0], weight[:, -1] = -127, 127
        packed = PackedLinear.quantize(weight, instruction_set=instruction_set)
        torch.testing.assert_close(packed(x), x @ weight.T, rtol=1e-5, atol=0.5)


def test_small_numbers_are_exact_in_int8(instruction_set: str) -> None:
    """Also where the product of both scales is too small for a float32 of full precision, but no result is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (9, 64), generator=generator).double()
    weight = torch.randint(-127, 128, (40, 64), generator=generator).double()
    x[:, 0], weight[:, -1] = -127, 127
    x, weight = x * 1.3 * 2.0**-70, weight * 1.3 * 2.0**-70
    found = PackedLinear.quantize(weight.float(), instruction_set=instruction_set)(x.float())
    torch.testing.assert_close(found.double(), x @ weight.T, rtol=1e-5, atol=2.0**-145)


def test_another_format_is_refused(instruction_set: str) -> None:
    """Rather than being read as if it had the weight's format."""
    packed = PackedLinear.pack(torch.zeros(4, 8), instruction_set=instruction_set)
    with pytest.raises(ValueError, match="allowed"):
        packed(torch.zeros(2, 8, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="allowed"):
        packed(torch.zeros(2, 9))
