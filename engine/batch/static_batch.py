"""A batch of decodes whose tensors keep their addresses, so that captured graphs can be replayed with them."""

from collections.abc import Sequence

import numpy as np
import torch

from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables
from orcastream.engine.kv.cache import KVCache

NOWHERE = -1
"""The slot of a row that writes nothing."""


class StaticBatch:
    """Room for `size` spans of one token each; any number of leading rows can be computed.

    A row without a span sees nothing (its context is 0) and writes nowhere (its slot is NOWHERE); its result must be
    ignored. Only backends with graphs support such rows.
    """

    def __init__(self, size: int, windows: Sequence[int | None], width: int, block_size: int, device: torch.device):
        """`windows` per group; no table is longer than `width` blocks."""
        self.size = size
        self._windows = tuple(windows)
        self._block_size = block_size
        self._ids = torch.zeros(2, size, dtype=torch.int64, device=device)
        self._contexts = torch.zeros(size, dtype=torch.int64, device=device)
        self._offsets = torch.arange(size + 1, device=device)
        self._slots = torch.full((len(windows), size), NOWHERE, device=device)
        self._tables = torch.zeros(len(windows), size, width, dtype=torch.int64, device=device)
        self._host_contexts = np.zeros(size, dtype=np.int64)
        self._host_tables = np.zeros((len(windows), size, width), dtype=np.int32)

    @classmethod
    def beside(cls, cache: KVCache, size: int, device: torch.device) -> "StaticBatch":
        """Return a batch for sequences of `cache`."""
        width = max(group.tables.array.shape[1] for group in cache.groups)
        return cls(size, [group.window for group in cache.groups], width, cache.block_size, device)

    def first(self, count: int) -> FlatBatch:
        """Return the first `count` rows: the same memory in every call."""
        return FlatBatch(
            input_ids=self._ids[:1, :count],
            position_ids=self._ids[1:, :count],
            offsets=np.arange(count + 1),
            contexts=self._host_contexts[:count],
            offsets_device=self._offsets[: count + 1],
            contexts_device=self._contexts[:count],
            num_single=count,
            groups=tuple(
                GroupTables(
                    window,
                    self._host_tables[index, :count],
                    self._tables[index, :count],
                    self._slots[index, :count],
                )
                for index, window in enumerate(self._windows)
            ),
            logit_rows=self._offsets[:count],
            order=tuple(range(count)),
            logit_spans=tuple(range(count)),
            block_size=self._block_size,
        )

    def load(self, batch: FlatBatch, count: int) -> None:
        """Load `batch`, at most `count` spans of one token each, into the first rows, and clear the rest up to
        `count`."""
        spans = batch.num_spans
        self._ids[0, :spans].copy_(batch.input_ids[0])
        self._ids[1, :spans].copy_(batch.position_ids[0])
        self._contexts[:spans].copy_(batch.contexts_device)
        self._host_contexts[:spans] = batch.contexts
        for index, group in enumerate(batch.groups):
            width = group.tables.shape[1]
            self._slots[index, :spans].copy_(group.slots)
            self._tables[index, :spans, :width].copy_(group.tables_device)
            self._host_tables[index, :spans, :width] = group.tables
        if spans < count:
            self._contexts[spans:count].zero_()
            self._slots[:, spans:count].fill_(NOWHERE)
            self._host_contexts[spans:count] = 0
