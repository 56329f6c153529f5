"""What a pass does, and how a module that takes another's place is checked."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

_log = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest distance of two outputs over the size of one, of what is only computed in another order."""

ROUNDED_TOLERANCE = 0.05
"""The same with weights and inputs in 8 bits: normal numbers are off by about 0.01."""

_CHECKED_ROWS = (1, 5, 40)

ROWS_OF_COPY = 5
"""Of what differs only in where its values are from something that was checked."""


class RowsToCheck:
    """With how many rows at once replacements are compared.

    What is computed how follows from a module's kind: its class, its shape, and what else a pass says of it. The first
    of a kind is checked with all numbers of rows, and the others only for where their values are, which a few rows
    show: the checks of a large model are half of its start.
    """

    def __init__(self) -> None:
        self._checked: set[Hashable] = set()

    def of(self, kind: Hashable) -> Sequence[int]:
        """Of one of that kind."""
        return (ROWS_OF_COPY,) if kind in self._checked else _CHECKED_ROWS

    def passed(self, kind: Hashable) -> None:
        """One of that kind has passed."""
        self._checked.add(kind)


class Pass(ABC):
    """One kind of replacement. What does not fit a model changes nothing of it."""

    name: str

    @abstractmethod
    def apply(self, model: PreTrainedModel) -> int:
        """Replace what can be replaced; how many modules it was."""


Replacement = Callable[[torch.Tensor], torch.Tensor]


def same(
    name: str, own: Replacement, other: Replacement, inputs: Iterable[torch.Tensor], tolerance: float | None = None
) -> bool:
    """Whether `other` computes what `own` does, up to `tolerance`, by default rounding; a log line where not."""
    for x in inputs:
        expected = own(x).float()
        try:
            found = other(x).float()
        except (RuntimeError, ValueError, TypeError) as error:
            _log.warning("%s stays as it is: %r", name, error)
            return False
        distance = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
        if found.shape != expected.shape or not distance <= (tolerance or TOLERANCE[x.dtype]):
            _log.warning("%s stays as it is: its replacement is off by %.2g", name, distance)
            return False
    return True


def random_inputs(width: int, dtype: torch.dtype, row_counts: Sequence[int]) -> Iterator[torch.Tensor]:
    """Some rows of normal numbers, `[1, rows, width]`, for each of the numbers of rows."""
    generator = torch.Generator().manual_seed(0)
    for rows in row_counts:
        yield torch.randn(1, rows, width, generator=generator).to(dtype)


def plain(module: nn.Module) -> bool:
    """Whether nothing hangs on the module that a replacement would lose."""
    return not any((module._forward_hooks, module._forward_pre_hooks, module.__dict__.get("forward")))


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` where `name` is."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
