"""Attention in plain torch: right everywhere, and the oracle that others are tested against."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.base import AttentionBackend, AttentionCall, register
from engine.batch.flat_batch import FlatBatch, GroupTables, IntArray
from engine.kv.layout import LayerShape
from engine.kv.store import LayerCache

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
class GroupPlan:
    """What the layers of one group do in one iteration."""

    slots: torch.Tensor
    decodes: list[_DecodeGroup]
    prefills: list[_PrefillSpan]


@register("torch")
class TorchBackend(AttentionBackend):
    """Gathers what each span sees, then attends.

    Spans of one token are gathered and computed together in groups of similar context, with the query heads that share
    a key head as rows of one product; longer spans are computed one by one.
    """

    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See the base class."""
        blocks = (shape.num_kv_heads, num_blocks, block_size)
        return LayerCache(
            torch.empty(*blocks, shape.key_size, dtype=dtype, device=device),
            torch.empty(*blocks, shape.value_size, dtype=dtype, device=device),
        )

    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> list[GroupPlan]:
        """One plan per group of layers."""
        runs = _runs(batch.contexts[: batch.num_single].tolist())
        return [
            GroupPlan(
                tables.slots,
                [_decode_group(batch, tables, run, dtype) for run in runs],
                [_prefill_span(batch, tables, index, dtype) for index in range(batch.num_single, batch.num_spans)],
            )
            for tables in batch.groups
        ]

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
        cache.keys.flatten(1, 2).index_copy_(1, work.slots, key.to(cache.keys.dtype))
        cache.values.flatten(1, 2).index_copy_(1, work.slots, value.to(cache.values.dtype))
        outputs = [_decode(group, cache, query, call) for group in work.decodes]
        outputs += [_prefill(span, cache, query, key, value, call) for span in work.prefills]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _runs(contexts: list[int]) -> list[tuple[int, int]]:
    """Split falling lengths of context into runs in which the padding to the first is less than the contexts, or free.

    Bounds of slices: a span joins the run before it if it has at least half its longest context.
    """
    runs: list[tuple[int, int]] = []
    start = padding = 0
    for index, context in enumerate(contexts):
        padding += contexts[start] - context
        if 2 * context < contexts[start] and padding > _PADDING_FREE_SLOTS:
            runs.append((start, index))
            start, padding = index, 0
    if contexts:
        runs.append((start, len(contexts)))
    return runs


def _decode_group(batch: FlatBatch, group: GroupTables, run: tuple[int, int], dtype: torch.dtype) -> _DecodeGroup:
    contexts = batch.contexts[slice(*run)]
    lengths = contexts if group.window is None else np.minimum(contexts, group.window)
    longest = int(lengths.max())
    columns = np.arange(longest)
    # Past the end of a context its first slot is read again, and barred.
    positions = (contexts - lengths)[:, None] + np.where(columns < lengths[:, None], columns, 0)
    slots = _slots(group.tables[slice(*run)], positions, batch.block_size)
    mask = None
    if int(lengths.min()) < longest:
        mask = _bias(torch.from_numpy(columns >= lengths[None, :, None, None]), dtype).to(batch.device)
    return _DecodeGroup(*run, torch.from_numpy(slots.reshape(-1)).to(batch.device), mask)


def _prefill_span(batch: FlatBatch, group: GroupTables, index: int, dtype: torch.dtype) -> _PrefillSpan:
    begin, end = int(batch.offsets[index]), int(batch.offsets[index + 1])
    length, stop = end - begin, int(batch.contexts[index])
    start = stop - length
    first = 0 if group.window is None else max(0, start - group.window + 1)
    slots = None
    if first < start:
        visible = _slots(group.tables[index : index + 1], np.arange(first, stop)[None], batch.block_size)
        slots = torch.from_numpy(visible[0]).to(batch.device)
    if first == start and (group.window is None or length <= group.window):
        return _PrefillSpan(begin, end, slots, None)
    keys = torch.arange(first, stop, device=batch.device)
    queries = torch.arange(start, stop, device=batch.device).unsqueeze(1)
    barred = keys > queries
    if group.window is not None:
        barred |= keys <= queries - group.window
    return _PrefillSpan(begin, end, slots, _bias(barred, dtype))


def _slots(tables: npt.NDArray[np.int32], positions: IntArray, block_size: int) -> IntArray:
    """The cache slots of `positions` `[spans, tokens]`, by `tables` `[spans, blocks]`."""
    blocks, offsets = np.divmod(positions, block_size)
    found: IntArray = np.take_along_axis(tables.astype(np.int64), blocks, axis=1) * block_size + offsets
    return found


def _bias(barred: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(barred.shape, dtype=dtype, device=barred.device).masked_fill_(barred, -torch.inf)


def _decode(group: _DecodeGroup, cache: LayerCache, query: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    spans = group.stop - group.start
    kv_heads, num_heads = cache.keys.shape[0], query.shape[0]
    keys = cache.keys.flatten(1, 2).index_select(1, group.slots).view(kv_heads, spans, -1, cache.keys.shape[3])
    values = cache.values.flatten(1, 2).index_select(1, group.slots).view(kv_heads, spans, -1, cache.values.shape[3])
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
        keys = cache.keys.flatten(1, 2).index_select(1, span.slots)
        values = cache.values.flatten(1, 2).index_select(1, span.slots)
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
