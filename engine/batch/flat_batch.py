"""The tokens of one iteration, laid end to end."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.batch.transfer import packed, unpacked
from engine.kv.cache import KVCache
from engine.kv.sequence import Sequence

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class SpanTokens:
    """One span to lay out: `ids` at positions `start` …, whose cache is `sequence`; logits of its last `num_logits`."""

    sequence: Sequence
    ids: Items[int]
    start: int
    num_logits: int


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where one layer group finds and puts the keys and values of a batch.

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

    Spans are in the order of the stream: those of one token first (`num_single` of them), by falling length of context
    (so that attention may compute neighbours together as contiguous slices), then the longer ones. Span i has the
    tokens `offsets[i]` … `offsets[i + 1] - 1` of the stream (`[num_spans + 1]`) and sees `contexts[i]` tokens, its own
    among them (`[num_spans]`); both int64 on the host, and on the device as `offsets_device` and `contexts_device`.
    `logit_rows` `[num_logits]` are the stream indices whose logits are wanted. `order[i]` is span i's place in the
    order in which the spans were given, `logit_spans[j]` the place of the span that row j of the logits belongs to.
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

    @property
    def num_spans(self) -> int:
        """Spans in the batch."""
        return len(self.contexts)

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.input_ids.device

    @classmethod
    def build(cls, spans: Items[SpanTokens], cache: KVCache, device: torch.device) -> "FlatBatch":
        """Lay `spans` (at least one, each with at least one token, all with room in `cache`) end to end."""
        given_lengths = [len(span.ids) for span in spans]
        ends = [span.start + length for span, length in zip(spans, given_lengths, strict=True)]
        order = sorted(range(len(spans)), key=lambda i: (given_lengths[i] > 1, -ends[i]))
        laid = [spans[index] for index in order]
        lengths = np.asarray([given_lengths[index] for index in order])
        starts = np.asarray([span.start for span in laid])
        offsets = np.concatenate([[0], lengths.cumsum()])
        ids = np.asarray([token for span in laid for token in span.ids])
        span_of_token = np.repeat(np.arange(len(laid)), lengths)
        positions = np.arange(len(ids)) - offsets[span_of_token] + starts[span_of_token]
        contexts = starts + lengths
        num_logits = np.asarray([span.num_logits for span in laid])
        rows = _last_of_each(offsets[1:], num_logits)
        tables = [
            group.tables.gather(
                np.asarray([span.sequence.row for span in laid]), -(-int(contexts.max()) // cache.block_size)
            )
            for group in cache.groups
        ]
        block_of_token, offset_in_block = np.divmod(positions, cache.block_size)
        slots = [table[span_of_token, block_of_token] * cache.block_size + offset_in_block for table in tables]
        # One copy to the device for everything.
        arrays = [ids, positions, offsets, contexts, rows, *slots, *tables]
        parts = unpacked(packed(arrays, device).to(device, non_blocking=True), arrays)
        device_slots, device_tables = parts[5 : 5 + len(slots)], parts[5 + len(slots) :]
        return cls(
            input_ids=parts[0].unsqueeze(0),
            position_ids=parts[1].unsqueeze(0),
            offsets=offsets,
            contexts=contexts,
            offsets_device=parts[2],
            contexts_device=parts[3],
            num_single=int((lengths == 1).sum()),
            groups=tuple(
                GroupTables(group.window, table, table_device, slot)
                for group, table, table_device, slot in zip(
                    cache.groups, tables, device_tables, device_slots, strict=True
                )
            ),
            logit_rows=parts[4],
            order=tuple(order),
            logit_spans=tuple(np.repeat(np.asarray(order), num_logits).tolist()),
            block_size=cache.block_size,
        )


def _last_of_each(ends: IntArray, counts: IntArray) -> IntArray:
    """The last `counts[i]` indices in front of `ends[i]`, one span after another."""
    total = counts.cumsum()
    last: IntArray = np.arange(int(counts.sum())) + np.repeat(ends - total, counts)
    return last
