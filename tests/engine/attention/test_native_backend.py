"""The compiled operator against attention written out in float64, with every instruction set of this machine."""

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch

from orcastream.engine.attention import AttentionCall, NativeBackend
from orcastream.engine.kv.layout import LayerShape
from tests.engine.attention.one_layer import QUANTIZED, OneLayer, mixed_iterations
from tests.engine.needs_operators import needs_operators

pytestmark = [
    needs_operators,
    pytest.mark.usefixtures("computes_with"),
]

SHAPES = [
    LayerShape(num_heads=6, num_kv_heads=2, key_size=8, value_size=5),
    LayerShape(num_heads=4, num_kv_heads=4, key_size=64, value_size=64),
    LayerShape(num_heads=16, num_kv_heads=1, key_size=80, value_size=96),
    LayerShape(num_heads=3, num_kv_heads=3, key_size=7, value_size=33),
]
CALLS: list[dict[str, Any]] = [
    {},
    {"window": 1},
    {"window": 7},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 5, "softcap": 2.0, "sinks": True},
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """With one thread no context is split."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def one_layer(shape: LayerShape = SHAPES[0], *, window: int | None = None, **options: Any) -> OneLayer:
    sinks = torch.randn(shape.num_heads) if options.pop("sinks", False) else None
    call = AttentionCall(1 / math.sqrt(shape.key_size), softcap=options.pop("softcap", None), sinks=sinks)
    return OneLayer(NativeBackend(), call, shape=shape, window=window, **options)


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_mixed_iterations(options: dict[str, Any]) -> None:
    mixed_iterations(one_layer(**options))


@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_block_sizes(shape: LayerShape, block_size: int) -> None:
    mixed_iterations(one_layer(shape, block_size=block_size))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("cache_dtype", [*QUANTIZED, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_formats_of_the_cache(shape: LayerShape, cache_dtype: torch.dtype, window: int | None) -> None:
    mixed_iterations(one_layer(shape, window=window, cache_dtype=cache_dtype, block_size=16))


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, *QUANTIZED], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_queries_in_bfloat16(shape: LayerShape, cache_dtype: torch.dtype) -> None:
    mixed_iterations(one_layer(shape, dtype=torch.bfloat16, cache_dtype=cache_dtype, tolerance=0.03))


@pytest.mark.parametrize(("window", "block_size"), [(None, 4), (200, 4), (1100, 16), (None, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("two_threads")
def test_long_contexts_are_split(dtype: torch.dtype, window: int | None, block_size: int) -> None:
    """A token at the border of two parts, which need not be a tile border, counts once."""
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    layer = one_layer(
        LayerShape(4, 1, 32, 32), window=window, dtype=dtype, cache_dtype=dtype, tolerance=tolerance,
        max_model_len=2048, block_size=block_size,
    )  # fmt: skip
    layer.iterate({"a": 1300})
    layer.iterate({"a": 1})
    layer.iterate({"a": 30, "b": 1})


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, *QUANTIZED], ids=str)
@pytest.mark.parametrize(
    ("shape", "block_size"), [(LayerShape(10, 2, 32, 48), 16), (LayerShape(16, 2, 84, 33), 32)], ids=str
)
def test_prompts_of_many_query_vectors(
    shape: LayerShape, block_size: int, cache_dtype: torch.dtype, window: int | None
) -> None:
    """More query vectors than are computed together; some see only a small part of what others see."""
    layer = one_layer(
        shape, window=window, block_size=block_size, dtype=torch.bfloat16, cache_dtype=cache_dtype,
        tolerance=0.03, max_model_len=512,
    )  # fmt: skip
    layer.iterate({"a": 150, "b": 7})
    layer.iterate({"b": 70, "a": 1})
    layer.iterate({"a": 90, "b": 20, "c": 1})


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, *QUANTIZED], ids=str)
@pytest.mark.parametrize(
    ("shape", "window", "longest"),
    [(LayerShape(4, 4, 64, 32), None, 520), (LayerShape(15, 5, 32, 48), 40, 50)],
    ids=str,
)
@pytest.mark.usefixtures("two_threads")
def test_several_key_heads_of_a_decode_are_computed_together(
    shape: LayerShape, cache_dtype: torch.dtype, window: int | None, longest: int
) -> None:
    """So many requests that a thread takes two heads of one at once; one has more tokens than are computed together."""
    dtype = torch.float32 if cache_dtype is torch.float32 else torch.bfloat16
    layer = one_layer(
        shape, window=window, block_size=16, dtype=dtype, cache_dtype=cache_dtype,
        tolerance=1e-5 if dtype is torch.float32 else 0.03, max_model_len=1024,
    )  # fmt: skip
    names = "abcdefgh"
    layer.iterate({name: 5 + 11 * number for number, name in enumerate(names)})
    layer.iterate({names[3]: longest})
    for tokens in (1, 2, 1):
        layer.iterate(dict.fromkeys(names, tokens))


@pytest.mark.parametrize("size", [1e3, 1e5, 1e13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_of_any_size(dtype: torch.dtype, size: float) -> None:
    """The largest one has the weight 1, although rounding changes it by more than a power can express."""
    layer = one_layer(LayerShape(20, 2, 80, 32), block_size=16, dtype=dtype, cache_dtype=dtype, tolerance=0.03)
    factors = cycle([size, size, 1.0])  # of queries, keys and values
    layer.random = lambda heads, tokens, width: (  # type: ignore[method-assign]  # of this layer alone
        (next(factors) * torch.randn(tokens, heads, width)).to(dtype).transpose(0, 1)
    )
    layer.iterate({"a": 33, "b": 1})
    layer.iterate({"a": 1, "b": 9})


def test_a_poisoned_request_stays_alone() -> None:
    """NaN affects only the queries that see it."""
    layer = one_layer(block_size=4)
    layer.iterate({"a": 7, "b": 6})
    layer.random = lambda heads, tokens, size: torch.stack(  # type: ignore[method-assign]  # of this layer alone
        [torch.full((heads, size), torch.nan), *torch.randn(tokens - 1, heads, size)], dim=1
    )
    with pytest.raises(AssertionError, match="a"):
        layer.iterate({"a": 1, "b": 1})
    del layer.random
    layer.iterate({"b": 5})
