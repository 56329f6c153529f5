"""Attention in plain torch: right everywhere, and the oracle that others are tested against."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.base import AttentionBackend, AttentionCall, LayerCache, LayerShape, register
from engine.batch.flat_batch import FlatBatch, Rows

_PADDING_FREE_SLOTS = 4096
"""Padding that a decode group may always have: gathering so few keys costs less than another call."""


@dataclass(slots=True)
class _DecodeGroup:
    """Neighbouring spans of one token, computed together: stream indices start … stop - 1.

    `slots` `[spans * longest]` are the cache slots of the context of each, filled up with its own first slot. `mask`
    `[1, spans, 1, longest]` (all four dimensions, or torch leaves its fast CPU path) bars the filling; None: there is
    none.
    """

    start: int
    stop: int
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class _PrefillSpan:
    """A span of several tokens: stream indices start … stop - 1.

    `slots` are those of all visible context, or None if that is just the span itself. `mask` `[length, context]` is
    None where plain causality over a square says the same.
    """

    start: int
    stop: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(slots=True)
class _WindowPlan:
    decodes: list[_DecodeGroup]
    prefills: list[_PrefillSpan]


@dataclass(slots=True)
class TorchPlan:
    """One iteration; what depends on the window is made when the first layer with that window asks."""

    batch: FlatBatch
    groups: list[tuple[int, int]]
    windows: dict[int | None, _WindowPlan] = field(default_factory=dict)

    def of(self, window: int | None, dtype: torch.dtype) -> _WindowPlan:
        """The plan for layers of that window; a window that no span outgrows is none."""
        if window is not None and all(span.stop <= window for span in self.batch.spans):
            window = None
        if window not in self.windows:
            decodes = [_decode_group(self.batch, group, window, dtype) for group in self.groups]
            prefills = [
                _prefill_span(self.batch, index, window, dtype)
                for index in range(self.batch.num_single, len(self.batch.spans))
            ]
            self.windows[window] = _WindowPlan(decodes, prefills)
        return self.windows[window]


@register("torch")
class TorchBackend(AttentionBackend):
    """Caches are `[num_kv_heads, num_slots, size]`: gathered contexts come out contiguous per head.

    Spans of one token are gathered and computed together in groups of similar context, with the query heads that share
    a key head as rows of one product; longer spans are computed one by one.
    """

    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Two tensors; slots that nobody wrote are never read."""
        slots = num_blocks * block_size
        return LayerCache(
            torch.empty(shape.num_kv_heads, slots, shape.key_size, dtype=dtype, device=device),
            torch.empty(shape.num_kv_heads, slots, shape.value_size, dtype=dtype, device=device),
        )

    def plan(self, batch: FlatBatch) -> TorchPlan:
        """Groups of decoding spans; masks and slots follow per window."""
        return TorchPlan(batch, _groups([span.stop for span in batch.spans[: batch.num_single]]))

    def attend(
        self,
        plan: TorchPlan,
        cache: LayerCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
    ) -> torch.Tensor:
        """See the base class."""
        cache.keys.index_copy_(1, plan.batch.slots, key)
        cache.values.index_copy_(1, plan.batch.slots, value)
        work = plan.of(call.window, query.dtype)
        outputs = [_decode(group, cache, query, call) for group in work.decodes]
        outputs += [_prefill(span, cache, query, key, value, call) for span in work.prefills]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _groups(contexts: list[int]) -> list[tuple[int, int]]:
    """Split falling lengths of context into runs in which the padding to the first is less than the contexts, or free.

    Bounds of slices: a span joins the run before it if it has at least half its longest context.
    """
    groups: list[tuple[int, int]] = []
    start = padding = 0
    for index, context in enumerate(contexts):
        padding += contexts[start] - context
        if 2 * context < contexts[start] and padding > _PADDING_FREE_SLOTS:
            groups.append((start, index))
            start, padding = index, 0
    if contexts:
        groups.append((start, len(contexts)))
    return groups


def _decode_group(batch: FlatBatch, group: tuple[int, int], window: int | None, dtype: torch.dtype) -> _DecodeGroup:
    spans = batch.spans[slice(*group)]
    lengths = [span.stop if window is None else min(span.stop, window) for span in spans]
    longest = max(lengths)
    slots = np.empty((len(spans), longest), dtype=np.int64)
    for row, span, length in zip(slots, spans, lengths, strict=True):
        row[:length] = span.table.slots(span.stop - length, span.stop, batch.block_size)
        row[length:] = row[0]
    mask = None
    if min(lengths) < longest:
        barred = np.arange(longest) >= np.asarray(lengths)[None, :, None, None]
        mask = _bias(torch.from_numpy(barred), dtype).to(batch.device)
    return _DecodeGroup(*group, torch.from_numpy(slots.reshape(-1)).to(batch.device), mask)


def _prefill_span(batch: FlatBatch, index: int, window: int | None, dtype: torch.dtype) -> _PrefillSpan:
    span: Rows = batch.spans[index]
    start = batch.offsets[index]
    stop = start + len(span.ids)
    first = 0 if window is None else max(0, span.start - window + 1)
    slots = None
    if first < span.start:
        visible = span.table.slots(first, span.stop, batch.block_size)
        slots = torch.from_numpy(visible).to(batch.device)
    if first == span.start and (window is None or len(span.ids) <= window):
        return _PrefillSpan(start, stop, slots, None)
    keys = torch.arange(first, span.stop, device=batch.device)
    queries = torch.arange(span.start, span.stop, device=batch.device).unsqueeze(1)
    barred = keys > queries
    if window is not None:
        barred |= keys <= queries - window
    return _PrefillSpan(start, stop, slots, _bias(barred, dtype))


def _bias(barred: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(barred.shape, dtype=dtype, device=barred.device).masked_fill_(barred, -torch.inf)


def _decode(group: _DecodeGroup, cache: LayerCache, query: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    spans = group.stop - group.start
    kv_heads, num_heads = cache.keys.shape[0], query.shape[0]
    keys = cache.keys.index_select(1, group.slots).view(kv_heads, spans, -1, cache.keys.shape[2])
    values = cache.values.index_select(1, group.slots).view(kv_heads, spans, -1, cache.values.shape[2])
    # The heads that share a key head become rows of one query: [kv_heads, spans, heads per kv head, size].
    selected = query[:, group.start : group.stop]
    folded = selected.reshape(kv_heads, -1, spans, query.shape[2]).transpose(1, 2)
    sinks = None if call.sinks is None else call.sinks.view(kv_heads, 1, -1, 1)
    output = _attend(folded, keys, values, group.mask, False, call, sinks)
    return output.transpose(1, 2).reshape(num_heads, spans, -1).transpose(0, 1)


def _prefill(
    span: _PrefillSpan,
    cache: LayerCache,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    call: AttentionCall,
) -> torch.Tensor:
    if span.slots is None:
        keys, values = key[:, span.start : span.stop], value[:, span.start : span.stop]
    else:
        keys, values = cache.keys.index_select(1, span.slots), cache.values.index_select(1, span.slots)
    kv_heads, length = keys.shape[0], span.stop - span.start
    queries = query[:, span.start : span.stop].reshape(kv_heads, -1, length, query.shape[2])
    # Key heads as a batch, the query heads that share one side by side: nothing is copied.
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
        return scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=call.scale)
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
