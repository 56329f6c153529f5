"""One attention layer on fresh random data, over iterations chosen by a test or a measurement."""

from collections.abc import Sequence

import numpy as np
import torch

from orcastream.engine.attention import AttentionBackend, AttentionCall
from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables
from orcastream.engine.batch.transfer import all_copied
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache

BLOCK_SIZE = 16


class Sequences:
    """Requests whose blocks, from `first_block` on, are in random order, each with room for its longest context."""

    def __init__(
        self, longest: Sequence[int], window: int | None, device: torch.device, seed: int, *, first_block: int = 0
    ) -> None:
        counts = [-(-length // BLOCK_SIZE) for length in longest]
        blocks = np.random.default_rng(seed).permutation(sum(counts))
        self.num_blocks = len(blocks)
        self._tables = np.zeros((len(counts), max(counts)), dtype=np.int32)
        for row, own in enumerate(np.split(blocks, np.cumsum(counts)[:-1])):
            self._tables[row, : len(own)] = first_block + own
        self._window = window
        self._device = device
        self._computed = [0] * len(counts)

    def skip(self, lengths: Sequence[int]) -> None:
        """Mark that many tokens of each as cached."""
        self._computed = [computed + length for computed, length in zip(self._computed, lengths, strict=True)]

    def batch(self, lengths: Sequence[int]) -> FlatBatch:
        """Return that many next tokens of each (0: not in the batch), laid out as in an iteration."""
        rows = [row for row, length in enumerate(lengths) if length]
        rows.sort(key=lambda row: (lengths[row] > 1, -self._computed[row] - lengths[row]))
        counts = np.asarray([lengths[row] for row in rows])
        starts = np.asarray([self._computed[row] for row in rows])
        self.skip(lengths)
        offsets, contexts = np.concatenate([[0], counts.cumsum()]), starts + counts
        spans = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(offsets[-1]) - offsets[spans] + starts[spans]
        tables = self._tables[rows]
        slots = tables[spans, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        arrays = [positions, offsets, contexts, slots, tables]
        places, device_offsets, device_contexts, device_slots, device_tables = all_copied(arrays, self._device)
        return FlatBatch(
            input_ids=places.unsqueeze(0),
            position_ids=places.unsqueeze(0),
            offsets=offsets,
            contexts=contexts,
            offsets_device=device_offsets,
            contexts_device=device_contexts,
            num_single=int((counts == 1).sum()),
            groups=(GroupTables(self._window, tables, device_tables, device_slots),),
            logit_rows=device_offsets[1:] - 1,
            order=tuple(rows),
            logit_spans=tuple(rows),
            block_size=BLOCK_SIZE,
        )


class Layer:
    """A backend and its cache of one layer."""

    def __init__(
        self,
        backend: AttentionBackend,
        shape: LayerShape,
        num_blocks: int,
        cache_dtype: torch.dtype,
        call: AttentionCall,
        device: torch.device,
    ) -> None:
        self.backend, self.call = backend, call
        self.cache: LayerCache = backend.allocate(shape, num_blocks, BLOCK_SIZE, cache_dtype, device)

    def attend(self, batch: FlatBatch, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """One iteration."""
        return self.backend.attend(self.backend.plan(batch, query.dtype), self.cache, query, key, value, self.call)


def vectors(
    shape: LayerShape, tokens: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, key and value `[heads, tokens, size]`, laid out token by token like the output of projections."""
    sizes = (
        (shape.num_heads, shape.key_size),
        (shape.num_kv_heads, shape.key_size),
        (shape.num_kv_heads, shape.value_size),
    )
    query, key, value = (
        torch.randn(tokens, heads, size, device=device, generator=generator).to(dtype).transpose(0, 1)
        for heads, size in sizes
    )
    return query, key, value
