"""The torch backend: attention in plain torch, correct everywhere, and the reference for testing the others."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from orcastream.engine.attention.base import PLAIN_DTYPES, AttentionBackend, AttentionCall, register
from orcastream.engine.attention.quantize import LARGEST, SCALE_DTYPE, dequantize, quantize
from orcastream.engine.attention.torch_plan import DecodeGroup, GroupPlan, PrefillSpan, make_plans
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache, as_bytes


@register("torch")
class TorchBackend(AttentionBackend):
    """Gathers the keys and values that each span sees, then attends.

    Spans of one token are gathered and computed together in groups of similar context, with the query heads that share
    a key head as rows of one product; longer spans are computed one by one. A span's own keys and values are rounded
    like the cache, so that results do not depend on where a prompt is split into chunks.
    """

    cache_dtypes = (*PLAIN_DTYPES, *LARGEST)

    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See the base class."""
        blocks = (shape.num_kv_heads, num_blocks, block_size)
        scales = [torch.empty(blocks, dtype=SCALE_DTYPE, device=device) for _ in range(2)] if dtype in LARGEST else []
        return LayerCache(
            torch.empty(*blocks, shape.key_size, dtype=dtype, device=device),
            torch.empty(*blocks, shape.value_size, dtype=dtype, device=device),
            *scales,
        )

    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> list[GroupPlan]:
        """Return one plan per group of layers."""
        return make_plans(batch, dtype)

    def attend(
        self,
        plan: list[GroupPlan],
        cache: LayerCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
    ) -> torch.Tensor:
        """See the base class."""
        work = plan[call.group]
        keys, values = _Slots(cache.keys, cache.key_scales), _Slots(cache.values, cache.value_scales)
        key = keys.write(work.slots, key, work.reads_stream)
        value = values.write(work.slots, value, work.reads_stream)
        outputs = [_decode(group, keys, values, query, call) for group in work.decodes]
        outputs += [_prefill(span, keys, values, query, key, value, call) for span in work.prefills]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _Slots:
    """The keys, or the values, of one layer as `[num_kv_heads, slots, size]`, in any storage format."""

    __slots__ = ("_numbers", "_scales")

    def __init__(self, numbers: torch.Tensor, scales: torch.Tensor | None) -> None:
        self._numbers = numbers.flatten(1, 2)
        self._scales = None if scales is None else scales.flatten(1, 2)

    def write(self, slots: torch.Tensor, vectors: torch.Tensor, read_back: bool) -> torch.Tensor:
        """Write `vectors` `[num_kv_heads, len(slots), size]`; with `read_back` return them as stored."""
        if self._scales is None:
            kept = vectors.to(self._numbers.dtype)
            self._numbers.index_copy_(1, slots, kept)
            return kept.to(vectors.dtype) if read_back else vectors
        numbers, scales = quantize(vectors, self._numbers.dtype)
        as_bytes(self._numbers).index_copy_(1, slots, as_bytes(numbers))
        self._scales.index_copy_(1, slots, scales)
        return dequantize(numbers, scales, vectors.dtype) if read_back else vectors

    def read(self, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the content of `slots`, `[num_kv_heads, len(slots), size]`."""
        if self._scales is None:
            return self._numbers.index_select(1, slots).to(dtype)
        numbers = as_bytes(self._numbers).index_select(1, slots).view(self._numbers.dtype)
        return dequantize(numbers, self._scales.index_select(1, slots), dtype)


def _decode(
    group: DecodeGroup, all_keys: _Slots, all_values: _Slots, query: torch.Tensor, call: AttentionCall
) -> torch.Tensor:
    spans = group.stop - group.start
    keys, values = all_keys.read(group.slots, query.dtype), all_values.read(group.slots, query.dtype)
    kv_heads, num_heads = keys.shape[0], query.shape[0]
    keys, values = (part.view(kv_heads, spans, -1, part.shape[2]) for part in (keys, values))
    # The heads that share a key head become rows of one query: [kv_heads, spans, heads per kv head, size].
    selected = query[:, group.start : group.stop]
    folded = selected.reshape(kv_heads, -1, spans, query.shape[2]).transpose(1, 2)
    sinks = None if call.sinks is None else call.sinks.view(kv_heads, 1, -1, 1)
    output = _attend(folded, keys, values, group.mask, False, call, sinks)
    return output.transpose(1, 2).reshape(num_heads, spans, -1).transpose(0, 1)


def _prefill(
    span: PrefillSpan,
    all_keys: _Slots,
    all_values: _Slots,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    call: AttentionCall,
) -> torch.Tensor:
    if span.slots is None:
        keys, values = key[:, span.start : span.stop], value[:, span.start : span.stop]
    else:
        keys, values = all_keys.read(span.slots, query.dtype), all_values.read(span.slots, query.dtype)
    kv_heads, length = keys.shape[0], span.stop - span.start
    queries = query[:, span.start : span.stop].reshape(kv_heads, -1, length, query.shape[2])
    # Key heads form the batch, and the query heads that share one are adjacent: nothing is copied.
    shared = (kv_heads, queries.shape[1], -1, -1)
    sinks = None if call.sinks is None else call.sinks.view(kv_heads, -1, 1, 1)
    output = _attend(
        queries,
        keys.unsqueeze(1).expand(shared),
        values.unsqueeze(1).expand(shared),
        span.mask,
        span.mask is None,
        call,
        sinks,
    )
    return output.flatten(0, 1).transpose(0, 1)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    call: AttentionCall,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention over the last two dimensions; `causal` is a square without `mask`."""
    if call.softcap is None and sinks is None:
        scale = call.scale
        if scale <= 0:  # by which torch multiplies minus infinity, the score of what `causal` hides
            query, scale = query * scale, 1.0
        return scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale)
    scores = (query @ key.transpose(-1, -2)).float() * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if causal:
        barred = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill(barred, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.float().expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    return weights.to(value.dtype) @ value
