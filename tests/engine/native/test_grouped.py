"""Linear layers of groups of rows against products in float64."""

from collections.abc import Iterator

import pytest
import torch

from orcastream.engine.native.grouped import GroupedLinear, Routes, combine
from orcastream.engine.native.linear import PackedLinear

SHAPES = [
    (1, 1, 1, 32, 32),
    (1, 4, 4, 70, 65),
    (5, 8, 2, 33, 63),
    (16, 40, 8, 96, 130),
    (33, 3, 2, 64, 96),
    (200, 5, 2, 100, 257),
    (700, 2, 1, 64, 96),
]
"""tokens, experts, choices, n, k; of the last ones an expert has several blocks of rows."""

ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 1e-5}


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def chosen(tokens: int, experts: int, choices: int) -> torch.Tensor:
    """Return different experts for each token, `[tokens, choices]`."""
    scores = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(tokens))
    return scores.topk(choices).indices


def operands(
    experts: int, n: int, k: int, tokens: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x with its own row stride, weights and biases of all experts."""
    generator = torch.Generator().manual_seed(n * k)
    x = torch.randn(tokens, k + 3, generator=generator).to(dtype)[:, :k]
    weights, biases = torch.randn(experts, n, k, generator=generator), torch.randn(experts, n, generator=generator)
    return x, weights.to(dtype), biases.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "experts", "choices", "n", "k"), SHAPES)
def test_product(
    instruction_set: str, tokens: int, experts: int, choices: int, n: int, k: int, dtype: torch.dtype
) -> None:
    """Of each token with each of its experts, up to rounding; then of each pair's own row."""
    x, weights, biases = operands(experts, n, k, tokens, dtype)
    packed = [PackedLinear.pack(*each, instruction_set) for each in zip(weights, biases, strict=True)]
    layers, numbers = GroupedLinear(packed), chosen(tokens, experts, choices)
    routes = Routes(numbers, experts)
    expected = torch.einsum("tk,tcnk->tcn", x.double(), weights[numbers].double()) + biases[numbers].double()
    places = torch.from_numpy(routes.places)
    found = layers(x, routes, routes.tokens)
    tolerance = {"rtol": ROUNDING[dtype], "atol": 1e-5 * k**0.5}
    torch.testing.assert_close(found[places].double(), expected, **tolerance)
    assert torch.equal(layers(x[torch.from_numpy(routes.tokens)], routes), found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_product_in_int8(instruction_set: str, dtype: torch.dtype) -> None:
    """Each pair's row as its expert's layer alone computes it."""
    x, weights, _ = operands(6, 70, 129, 40, dtype)
    packed = [PackedLinear.quantize(each, instruction_set=instruction_set) for each in weights]
    numbers = chosen(40, 6, 2)
    routes = Routes(numbers, 6)
    found = GroupedLinear(packed)(x, routes, routes.tokens)
    for token, choice in ((0, 0), (17, 1), (39, 1)):
        alone = packed[int(numbers[token, choice])](x[token : token + 1])
        assert torch.equal(found[routes.places[token, choice]], alone[0])


@pytest.mark.parametrize("instruction_set", ["amx", "avx512_bf16"], indirect=True)
@pytest.mark.parametrize("tokens", [3, 60])
def test_compact_weights_give_the_same(instruction_set: str, tokens: int) -> None:
    """Also if only some experts could be made compact."""
    x, weights, _ = operands(3, 96, 256, tokens, torch.bfloat16)
    packed = [PackedLinear.pack(each, instruction_set=instruction_set) for each in weights]
    routes = Routes(chosen(tokens, 3, 2), 3)
    expected = GroupedLinear(packed)(x, routes, routes.tokens)
    compact = packed[1].compact()
    assert compact is not None
    layers = GroupedLinear(packed)
    packed[1].adopt(compact)
    torch.testing.assert_close(layers(x, routes, routes.tokens), expected, rtol=2**-7, atol=1e-4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(("tokens", "choices"), [(1, 1), (1, 5), (90, 2)])
def test_any_number_of_threads_computes_the_same(instruction_set: str, tokens: int, choices: int, count: int) -> None:
    """Also with fewer experts than threads, whose columns they share."""
    x, weights, _ = operands(5, 100, 64, tokens, torch.bfloat16)
    layers = GroupedLinear([PackedLinear.pack(each, instruction_set=instruction_set) for each in weights])
    routes = Routes(chosen(tokens, 5, choices), 5)
    factors = torch.rand(tokens, choices)
    torch.set_num_threads(1)
    expected = layers(x, routes, routes.tokens)
    combined = combine(expected, routes, factors, instruction_set)
    torch.set_num_threads(count)
    assert torch.equal(layers(x, routes, routes.tokens), expected)
    assert torch.equal(combine(expected, routes, factors, instruction_set), combined)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "width"), [(1, 40), (1, 4096), (50, 1), (50, 1031)])
def test_what_a_tokens_experts_yield_is_added_by_weight(
    instruction_set: str, tokens: int, width: int, dtype: torch.dtype
) -> None:
    """Sums are rounded once."""
    numbers = chosen(tokens, 7, 3)
    routes = Routes(numbers, 7)
    x, weights = torch.randn(3 * tokens, width).to(dtype), torch.rand(tokens, 3).to(dtype)
    expected = (x.double()[torch.from_numpy(routes.places)] * weights.double().unsqueeze(2)).sum(1)
    found = combine(x, routes, weights, instruction_set)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[dtype], atol=1e-5)


def test_numbers_that_are_no_experts_are_left_out(instruction_set: str) -> None:
    """Some models mark a choice that does not count with the number behind the last one."""
    x, weights, _ = operands(4, 40, 32, 3, torch.float32)
    layers = GroupedLinear([PackedLinear.pack(each, instruction_set=instruction_set) for each in weights])
    numbers = torch.tensor([[1, 4], [4, 4], [3, 1]])
    routes = Routes(numbers, 4)
    assert routes.places.tolist() == [[0, -1], [-1, -1], [2, 1]]
    found = combine(layers(x, routes, routes.tokens), routes, torch.ones(3, 2), instruction_set)
    expected = [weights[1] @ x[0], torch.zeros(40), (weights[3] + weights[1]) @ x[2]]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)
    nothing = Routes(torch.full((3, 2), 4), 4)
    assert not combine(layers(x, nothing, nothing.tokens), nothing, torch.ones(3, 2), instruction_set).any()


def test_layers_of_several_shapes_are_refused(instruction_set: str) -> None:
    """Threads share the columns of all groups alike."""
    packed = [PackedLinear.pack(torch.zeros(n, 32), instruction_set=instruction_set) for n in (32, 64)]
    with pytest.raises(ValueError, match="linears: got several shapes or formats, allowed: one"):
        GroupedLinear(packed)


@pytest.mark.parametrize(("dtype", "k"), [(torch.bfloat16, 32), (torch.float32, 33)])
def test_rows_in_another_form_are_refused(instruction_set: str, dtype: torch.dtype, k: int) -> None:
    """The operator would read beyond them."""
    layers = GroupedLinear.pack([torch.zeros(8, 32)], instruction_set=instruction_set)
    routes = Routes(torch.zeros(2, 1, dtype=torch.long), 1)
    with pytest.raises(ValueError, match=r"x: got .*, allowed: torch.float32 \[..., 32\]"):
        layers(torch.zeros(2, k, dtype=dtype), routes)
