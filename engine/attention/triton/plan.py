"""The plan that all layers of a group share in one iteration, made on the host and copied at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables, IntArray
from orcastream.engine.batch.transfer import packed, unpacked

_UNIT = 64
"""A split ends at a multiple of this many tokens from its beginning, so that only its last tile has a gap."""

_SHORTEST = 256
"""Minimum tokens of a split: fewer are computed in less time than another split takes to merge."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The first `num_spans` spans, of one token each, in splits.

    `splits` `[n, 3]`: span, first position, and the one after the last; those of span i are `firsts[i]` …
    `firsts[i + 1] - 1` `[num_spans + 1]`, and empty ones fill the list up. All int64 on the device.
    """

    num_spans: int
    tables: torch.Tensor
    splits: torch.Tensor
    firsts: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The spans of several tokens: where they begin in the stream (`[num_spans + 1]`), and how much each sees.

    `prepared` is what a backend with other kernels for these spans has made for them.
    """

    num_spans: int
    num_tokens: int
    window: int | None
    tables: torch.Tensor
    offsets: torch.Tensor
    contexts: torch.Tensor
    prepared: Any = None

    @classmethod
    def of(cls, batch: FlatBatch, group: GroupTables) -> "PrefillPlan":
        """Return those of `batch`, with the tables of `group`."""
        first = batch.num_single
        return cls(
            batch.num_spans - first,
            int(batch.offsets[-1] - batch.offsets[first]),
            group.window,
            group.tables_device[first:],
            batch.offsets_device[first:],
            batch.contexts_device[first:],
        )

    def num_tiles(self, tokens: int) -> int:
        """Return the number of tiles of `tokens` tokens. Span i, which begins b tokens after the first, has those from
        `b // tokens + i` on: a few more than needed, but each finds its span without a list."""
        return self.num_tokens // tokens + self.num_spans


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """Per group of layers where keys and values go, and what is attended; `lists` are all lists of splits in one."""

    slots: tuple[torch.Tensor, ...]
    decodes: tuple[DecodePlan, ...]
    prefills: tuple[PrefillPlan, ...]
    lists: torch.Tensor

    @classmethod
    def of(
        cls, batch: FlatBatch, processors: int, prefill: Callable[[FlatBatch, GroupTables], PrefillPlan]
    ) -> "TritonPlan":
        """Return the plan for a device with that many multiprocessors; `prefill` plans a group's longer spans."""
        arrays = _lists(batch, processors)
        lists = packed(arrays, batch.device).to(batch.device, non_blocking=True)
        parts = iter(unpacked(lists, arrays))
        return cls(
            tuple(group.slots for group in batch.groups),
            tuple(
                DecodePlan(batch.num_single, group.tables_device, next(parts), next(parts)) for group in batch.groups
            ),
            tuple(prefill(batch, group) for group in batch.groups),
            lists,
        )

    def follow(self, batch: FlatBatch, processors: int) -> None:
        """Update the lists in place for a batch of as many spans, whose tensors have the same addresses."""
        self.lists.copy_(packed(_lists(batch, processors), batch.device), non_blocking=True)


def splits_of(
    contexts: IntArray, window: int | None, processors: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`splits` and `firsts` of a DecodePlan: at most `processors` more splits than spans, about equally long.

    With that many for each key head, every multiprocessor gets a few programs, wherever the long contexts are.
    """
    begins = np.zeros_like(contexts) if window is None else np.maximum(contexts - window, 0)
    lengths = contexts - begins
    longest = max(_SHORTEST, -(-int(lengths.sum()) // processors))
    counts = -(-lengths // longest)
    sizes = _round_up(-(-lengths // np.maximum(counts, 1)))
    counts = -(-lengths // np.maximum(sizes, 1))
    firsts = np.concatenate([[0], counts.cumsum()])
    spans = np.repeat(np.arange(len(contexts)), counts)
    starts = begins[spans] + (np.arange(firsts[-1]) - firsts[spans]) * sizes[spans]
    splits = np.zeros((len(contexts) + processors, 3), dtype=np.int64)
    splits[: firsts[-1]] = np.stack([spans, starts, np.minimum(starts + sizes[spans], contexts[spans])], axis=1)
    return splits, firsts


def _round_up(lengths: IntArray) -> IntArray:
    rounded: IntArray = -(-lengths // _UNIT) * _UNIT
    return rounded


def _lists(batch: FlatBatch, processors: int) -> list[npt.NDArray[np.int64]]:
    """Splits and firsts of each group."""
    contexts = batch.contexts[: batch.num_single]
    return [array for group in batch.groups for array in splits_of(contexts, group.window, processors)]
