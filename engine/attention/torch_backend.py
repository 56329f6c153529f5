"""Attention in plain torch: right everywhere, and the oracle that others are tested against."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.base import PLAIN_DTYPES, AttentionBackend, AttentionCall, register
from engine.attention.quantize import LARGEST, SCALE_DTYPE, dequantize, quantize
from engine.batch.flat_batch import FlatBatch, GroupTables, IntArray
from engine.kv.layout import LayerShape
from engine.kv.store import LayerCache, as_bytes

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
    reads_stream: bool
    """Whether a span sees itself alone, so that its keys and values are not gathered."""


@register("torch")
class TorchBackend(AttentionBackend):
    """Gathers what each span sees, then attends.

    Spans of one token are gathered and computed together in groups of similar context, with the query heads that share
    a key head as rows of one product; longer spans are computed one by one. What a span sees of itself is rounded as
    the cache rounds it, so that results do not depend on where a prompt is cut into chunks.
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
        """One plan per group of layers."""
        runs = _runs(batch.contexts[: batch.num_single].tolist())
        plans = []
        for tables in batch.groups:
            prefills = [
                _prefill_span(batch, tables, index, dtype) for index in range(batch.num_single, batch.num_spans)
            ]
            plans.append(
                GroupPlan(
                    tables.slots,
                    [_decode_group(batch, tables, run, dtype) for run in runs],
                    prefills,
                    any(span.slots is None for span in prefills),
                )
            )
        return plans

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
    """The keys, or the values, of one layer as `[num_kv_heads, slots, size]`, in whatever format they are kept."""

    __slots__ = ("_numbers", "_scales")

    def __init__(self, numbers: torch.Tensor, scales: torch.Tensor | None) -> None:
        self._numbers = numbers.flatten(1, 2)
        self._scales = None if scales is None else scales.flatten(1, 2)

    def write(self, slots: torch.Tensor, vectors: torch.Tensor, read_back: bool) -> torch.Tensor:
        """Put `vectors` `[num_kv_heads, len(slots), size]` there; with `read_back` returns what was kept of them."""
        if self._scales is None:
            kept = vectors.to(self._numbers.dtype)
            self._numbers.index_copy_(1, slots, kept)
            return kept.to(vectors.dtype) if read_back else vectors
        numbers, scales = quantize(vectors, self._numbers.dtype)
        as_bytes(self._numbers).index_copy_(1, slots, as_bytes(numbers))
        self._scales.index_copy_(1, slots, scales)
        return dequantize(numbers, scales, vectors.dtype) if read_back else vectors

    def read(self, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What `slots` hold, `[num_kv_heads, len(slots), size]`."""
        if self._scales is None:
            return self._numbers.index_select(1, slots).to(dtype)
        numbers = as_bytes(self._numbers).index_select(1, slots).view(self._numbers.dtype)
        return dequantize(numbers, self._scales.index_select(1, slots), dtype)


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


def _decode(
    group: _DecodeGroup, all_keys: _Slots, all_values: _Slots, query: torch.Tensor, call: AttentionCall
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
    span: _PrefillSpan,
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
