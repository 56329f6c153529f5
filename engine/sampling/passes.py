"""Passes over a wide tensor: how many of its rows are processed at a time."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

from orcastream.engine.batch.transfer import copied

NARROW = 8192
"""Up to this vocabulary size the cost per operation exceeds that per element: rows are processed together."""
_CACHED = 1 << 17
"""Elements of one pass over such rows: with its temporaries a pass stays in the L2 cache of a core."""
_DEVICE = 1 << 28
"""Elements of one pass on an accelerator, where few launches matter; only a bound on memory."""

Item = TypeVar("Item")


def one_by_one(like: torch.Tensor) -> bool:
    """Whether rows as wide as those of `like` are processed one at a time, so that each stays in a core's cache."""
    return like.device.type == "cpu" and like.shape[1] > NARROW


def rows_at_once(like: torch.Tensor) -> int:
    """Return the most rows of one pass, which depends only on device and width."""
    if one_by_one(like):
        return 1
    return max(1, (_CACHED if like.device.type == "cpu" else _DEVICE) // like.shape[1])


def passes(items: Sequence[Item], like: torch.Tensor) -> Iterator[Sequence[Item]]:
    """Split `items`, one per row as wide as those of `like`, into pieces that are processed together."""
    size = rows_at_once(like)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def gathered(logits: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return those rows as float32 `[len(indices), vocab]`. Read-only: consecutive rows may be a view."""
    first = indices[0]
    if list(indices) == list(range(first, first + len(indices))):
        return logits[first : first + len(indices)].float()
    return logits[copied(indices, logits.device)].float()
