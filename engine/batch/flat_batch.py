"""The tokens of one iteration, laid end to end."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from orcastream.engine.batch.transfer import all_copied
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.sequence import Sequence

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class SpanTokens:
    """One span to lay out: `ids` at positions `start` …, cached in `sequence`; logits for the last `num_logits`."""

    sequence: Sequence
    ids: Items[int]
    start: int
    num_logits: int


@dataclass(slots=True)
class SpanColumns:
    """Spans to lay out, one list per property instead of one object per span: `rows` of the block tables, `starts`,
    `lengths`, and `num_logits`; `ids` are those of all spans end to end. `adapters` has their numbers, -1 for none, or
    is empty where no span has one."""

    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    num_logits: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    adapters: list[int] = field(default_factory=list)

    def add(self, sequence: Sequence, ids: Items[int], start: int, num_logits: int) -> None:
        """One more span, as in SpanTokens."""
        self.rows.append(sequence.row)
        self.starts.append(start)
        self.lengths.append(len(ids))
        self.num_logits.append(num_logits)
        self.ids.extend(ids)


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where one layer group reads and writes the keys and values of a batch.

    `tables` `[num_spans, width]` int32 on the host (and `tables_device`, int64, on the device) lists the blocks of
    each span; entries that no query of the span sees are 0. `slots` `[num_tokens]` int64 on the device is where each
    token's key and value go: block * block_size + offset. `window` as in LayerShape.
    """

    window: int | None
    tables: npt.NDArray[np.int32]
    tables_device: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Orca's flat batch, as plain data: no token is padded, every token-wise layer sees `[1, num_tokens]`.

    Spans are in stream order: those of one token first (`num_single` of them), by descending context length (so that
    attention may compute neighbors together as contiguous slices), then the longer ones. Span i has the tokens
    `offsets[i]` … `offsets[i + 1] - 1` of the stream (`[num_spans + 1]`) and sees `contexts[i]` tokens, including its
    own (`[num_spans]`); both int64 on the host, and on the device as `offsets_device` and `contexts_device`.
    `logit_rows` `[num_logits]` are the stream indices whose logits are wanted. `order[i]` is the index of span i in the
    order in which the spans were given, `logit_spans[j]` that of the span to which row j of the logits belongs.
    `adapters` `[num_spans]`, int64 on the host, has the number of each span's adapter (-1: none), or is None if no span
    has one.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    offsets: IntArray
    contexts: IntArray
    offsets_device: torch.Tensor
    contexts_device: torch.Tensor
    num_single: int
    groups: tuple[GroupTables, ...]
    logit_rows: torch.Tensor
    order: tuple[int, ...]
    logit_spans: tuple[int, ...]
    block_size: int
    adapters: IntArray | None = None

    @property
    def num_spans(self) -> int:
        """Number of spans in the batch."""
        return len(self.contexts)

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.input_ids.device

    @classmethod
    def build(cls, spans: Items[SpanTokens], cache: KVCache, device: torch.device) -> "FlatBatch":
        """Lay `spans` (at least one, each with at least one token, all with room in `cache`) end to end."""
        columns = SpanColumns()
        for span in spans:
            columns.add(span.sequence, span.ids, span.start, span.num_logits)
        return cls.lay_out(columns, cache, device)

    @classmethod
    def lay_out(cls, spans: SpanColumns, cache: KVCache, device: torch.device) -> "FlatBatch":
        """Do as `build`, for spans given as columns."""
        given_lengths, given_starts = _array(spans.lengths), _array(spans.starts)
        is_long, ends = given_lengths > 1, given_starts + given_lengths
        num_single = len(ends) - int(np.count_nonzero(is_long))
        order = np.lexsort((-ends, is_long))
        lengths, starts, contexts = given_lengths[order], given_starts[order], ends[order]
        offsets = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        num_logits = _array(spans.num_logits)[order]
        if num_single == len(order):
            span_of_token, positions, ids = np.arange(len(order)), starts, _array(spans.ids)[order]
        else:
            span_of_token = np.repeat(np.arange(len(order)), lengths)
            in_span = np.arange(len(spans.ids)) - offsets[span_of_token]
            positions = in_span + starts[span_of_token]
            ids = _array(spans.ids)[(given_lengths.cumsum() - given_lengths)[order][span_of_token] + in_span]
        rows = _last_of_each(offsets[1:], num_logits)
        width = -(-int(contexts.max()) // cache.block_size)
        table_rows = _array(spans.rows)[order]
        tables = [group.tables.gather(table_rows, width) for group in cache.groups]
        block_of_token, offset_in_block = np.divmod(positions, cache.block_size)
        slots = [table[span_of_token, block_of_token] * cache.block_size + offset_in_block for table in tables]
        # One copy to the device for everything.
        arrays = [ids, positions, offsets, contexts, rows, *slots, *tables]
        parts = all_copied(arrays, device)
        device_slots, device_tables = parts[5 : 5 + len(slots)], parts[5 + len(slots) :]
        return cls(
            input_ids=parts[0].unsqueeze(0),
            position_ids=parts[1].unsqueeze(0),
            offsets=offsets,
            contexts=contexts,
            offsets_device=parts[2],
            contexts_device=parts[3],
            num_single=num_single,
            groups=tuple(
                GroupTables(group.window, table, table_device, slot)
                for group, table, table_device, slot in zip(
                    cache.groups, tables, device_tables, device_slots, strict=True
                )
            ),
            logit_rows=parts[4],
            order=tuple(order.tolist()),
            logit_spans=tuple(np.repeat(order, num_logits).tolist()),
            block_size=cache.block_size,
            adapters=_array(spans.adapters)[order] if spans.adapters else None,
        )


def _array(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _last_of_each(ends: IntArray, counts: IntArray) -> IntArray:
    """Return the last `counts[i]` indices before `ends[i]`, one span after another."""
    total = counts.cumsum()
    last: IntArray = np.arange(int(counts.sum())) + np.repeat(ends - total, counts)
    return last
