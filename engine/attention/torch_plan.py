"""The plan of plain torch attention: what it gathers in one iteration, and which spans it computes together."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables, IntArray

_PADDING_FREE_SLOTS = 4096
"""Padding that a decode group may always have: gathering this few keys costs less than another call."""


@dataclass(slots=True)
class DecodeGroup:
    """Neighboring spans of one token, computed together: stream indices start … stop - 1.

    `slots` `[spans * longest]` are the cache slots of each context, padded with its own first slot. `mask`
    `[1, spans, 1, longest]` (all four dimensions, or torch leaves its fast CPU path) masks the padding; None if there
    is none.
    """

    start: int
    stop: int
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class PrefillSpan:
    """A span of several tokens: stream indices start … stop - 1.

    `slots` are those of all visible context, or None if that is only the span itself. `mask` `[length, context]` is
    None if it equals a plain causal square.
    """

    start: int
    stop: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(slots=True)
class GroupPlan:
    """The plan of the layers of one group for one iteration."""

    slots: torch.Tensor
    decodes: list[DecodeGroup]
    prefills: list[PrefillSpan]
    reads_stream: bool
    """Whether any span sees only itself, so that its keys and values are not gathered."""


def make_plans(batch: FlatBatch, dtype: torch.dtype) -> list[GroupPlan]:
    """Return one plan per group of layers; masks have the `dtype` of the queries."""
    runs = padded_runs(batch.contexts[: batch.num_single].tolist())
    plans = []
    for tables in batch.groups:
        prefills = [_prefill_span(batch, tables, index, dtype) for index in range(batch.num_single, batch.num_spans)]
        plans.append(
            GroupPlan(
                tables.slots,
                [_decode_group(batch, tables, run, dtype) for run in runs],
                prefills,
                any(span.slots is None for span in prefills),
            )
        )
    return plans


def padded_runs(contexts: list[int]) -> list[tuple[int, int]]:
    """Split descending context lengths into runs whose padding to the first is less than their contexts, or free.

    Returns slice bounds: a span joins the previous run if it has at least half of that run's longest context.
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


def _decode_group(batch: FlatBatch, group: GroupTables, run: tuple[int, int], dtype: torch.dtype) -> DecodeGroup:
    contexts = batch.contexts[slice(*run)]
    lengths = contexts if group.window is None else np.minimum(contexts, group.window)
    longest = int(lengths.max())
    columns = np.arange(longest)
    # Beyond the end of a context its first slot is read again, and masked.
    positions = (contexts - lengths)[:, None] + np.where(columns < lengths[:, None], columns, 0)
    slots = _slots(group.tables[slice(*run)], positions, batch.block_size)
    mask = None
    if int(lengths.min()) < longest:
        mask = _bias(torch.from_numpy(columns >= lengths[None, :, None, None]), dtype).to(batch.device)
    return DecodeGroup(*run, torch.from_numpy(slots.reshape(-1)).to(batch.device), mask)


def _prefill_span(batch: FlatBatch, group: GroupTables, index: int, dtype: torch.dtype) -> PrefillSpan:
    begin, end = int(batch.offsets[index]), int(batch.offsets[index + 1])
    length, stop = end - begin, int(batch.contexts[index])
    start = stop - length
    first = 0 if group.window is None else max(0, start - group.window + 1)
    slots = None
    if first < start:
        visible = _slots(group.tables[index : index + 1], np.arange(first, stop)[None], batch.block_size)
        slots = torch.from_numpy(visible[0]).to(batch.device)
    if first == start and (group.window is None or length <= group.window):
        return PrefillSpan(begin, end, slots, None)
    keys = torch.arange(first, stop, device=batch.device)
    queries = torch.arange(start, stop, device=batch.device).unsqueeze(1)
    barred = keys > queries
    if group.window is not None:
        barred |= keys <= queries - group.window
    return PrefillSpan(begin, end, slots, _bias(barred, dtype))


def _slots(tables: npt.NDArray[np.int32], positions: IntArray, block_size: int) -> IntArray:
    """Return the cache slots of `positions` `[spans, tokens]`, by `tables` `[spans, blocks]`."""
    blocks, offsets = np.divmod(positions, block_size)
    found: IntArray = np.take_along_axis(tables.astype(np.int64), blocks, axis=1) * block_size + offsets
    return found


def _bias(barred: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(barred.shape, dtype=dtype, device=barred.device).masked_fill_(barred, -torch.inf)
