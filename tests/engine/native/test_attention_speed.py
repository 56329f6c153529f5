"""The speed of attention, in units of a matrix product on the same machine at the same time."""

from collections.abc import Callable

import pytest
import torch

from orcastream.engine.attention import AttentionCall, choose_backend, native_backend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup, LayerShape
from orcastream.engine.native.instruction_sets import supported
from orcastream.engine.native.library import library
from tests.engine.needs_operators import needs_operators
from tests.engine.speed_ratio import check_ratio

pytestmark = needs_operators

_TOKENS = 512
_SHAPE = LayerShape(16, 8, 128, 128)
_CPU = torch.device("cpu")


def _attention(dtype: torch.dtype) -> Callable[[], object]:
    """Return the attention of a whole prompt in one layer."""
    backend = choose_backend("native", _CPU, dtype)
    num_blocks = _TOKENS // 16
    layer = backend.allocate(_SHAPE, num_blocks, 16, dtype, _CPU)
    cache = KVCache(
        [LayerGroup(None, (0,))], [num_blocks], block_size=16, max_sequences=1, max_model_len=_TOKENS,
        longest_span=_TOKENS, prefix_cache=False,
    )  # fmt: skip
    sequence = cache.sequence_of(1)
    cache.grow(sequence, 0, _TOKENS)
    plan = backend.plan(FlatBatch.build([SpanTokens(sequence, [0] * _TOKENS, 0, 1)], cache, _CPU), dtype)
    query, key, value = (
        torch.randn(_TOKENS, heads, _SHAPE.key_size).to(dtype).transpose(0, 1)
        for heads in (_SHAPE.num_heads, _SHAPE.num_kv_heads, _SHAPE.num_kv_heads)
    )
    call = AttentionCall(scale=_SHAPE.key_size**-0.5, group=0)
    return lambda: backend.attend(plan, layer, query, key, value, call)


def _product() -> Callable[[], object]:
    """Return one float32 product with as many multiplications as its scores and weighted values need."""
    seen = _TOKENS * _TOKENS // 2 * _SHAPE.num_heads * 2
    left, right = torch.randn(1024, _SHAPE.key_size), torch.randn(_SHAPE.key_size, seen // 1024)
    into = torch.empty(1024, seen // 1024)
    return lambda: torch.mm(left, right, out=into)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("instruction_set", supported())
def test_attention_in_units_of_a_product(
    instruction_set: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole prompt of one layer; the product uses the fastest available instructions."""
    chosen = library(instruction_set)
    monkeypatch.setattr(native_backend, "library", lambda: chosen)
    check_ratio(_attention(dtype), _product(), recorded=4.2 if instruction_set == "avx2" else 2.0)
