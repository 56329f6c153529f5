"""How many rows of a wide tensor are worked on at a time."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

NARROW = 8192
"""A vocabulary up to this size costs more by the operation than by the element: rows are worked on together."""
_CACHED = 1 << 17
"""Elements of one pass over such rows: with its temporaries a pass stays in the second-level cache of a core."""
_DEVICE = 1 << 28
"""Elements of one pass on an accelerator, which is to be launched few times; a bound on memory only."""

Item = TypeVar("Item")


def one_by_one(like: torch.Tensor) -> bool:
    """Whether rows as wide as those of `like` are worked on one at a time, so that each stays in a core's cache."""
    return like.device.type == "cpu" and like.shape[1] > NARROW


def rows_at_once(like: torch.Tensor) -> int:
    """The most rows of one pass; it depends on the device and the width alone."""
    if one_by_one(like):
        return 1
    return max(1, (_CACHED if like.device.type == "cpu" else _DEVICE) // like.shape[1])


def passes(items: Sequence[Item], like: torch.Tensor) -> Iterator[Sequence[Item]]:
    """`items`, one per row as wide as those of `like`, cut into pieces that are worked on together."""
    size = rows_at_once(like)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def gathered(logits: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Those rows as float32 `[len(indices), vocab]`, not to be written to: rows in a run may be no copy."""
    first = indices[0]
    if list(indices) == list(range(first, first + len(indices))):
        return logits[first : first + len(indices)].float()
    return logits[torch.tensor(indices, dtype=torch.int64, device=logits.device)].float()
