"""The interface of passes, and the check of a module that replaces another."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.extensions import adding

_log = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest relative distance of two outputs that differ only in the order of computation."""

ROUNDED_TOLERANCE = 0.05
"""The same for weights and inputs in 8 bits: normally distributed values are off by about 0.01."""

_CHECKED_ROWS = (1, 5, 16, 40)

ROWS_OF_COPY = 5
"""Rows for a replacement that differs from a checked one only in its values."""


class RowsToCheck:
    """The numbers of rows with which replacements are compared.

    How a module is computed follows from its kind: its class, its shape, and what else a pass includes. The first of a
    kind is checked with all numbers of rows, the others only for their values, for which a few rows suffice: the checks
    of a large model take half of its startup time.
    """

    def __init__(self) -> None:
        self._checked: set[Hashable] = set()

    def of(self, kind: Hashable) -> Sequence[int]:
        """Return the numbers of rows for a module of that kind."""
        return (ROWS_OF_COPY,) if kind in self._checked else _CHECKED_ROWS

    def passed(self, kind: Hashable) -> None:
        """Note that a module of that kind has passed."""
        self._checked.add(kind)


class Pass(ABC):
    """One kind of replacement. A pass that does not fit a model leaves it unchanged."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, model: PreTrainedModel) -> int:
        """Replace modules where possible; return how many."""


PASSES: dict[str, type[Pass]] = {}


def register(name: str) -> Callable[[type[Pass]], type[Pass]]:
    """Class decorator: register a pass, whose constructor takes no required argument, under `name`."""
    return adding(PASSES, name)


Replacement = Callable[[torch.Tensor], torch.Tensor]


def same(
    name: str, own: Replacement, other: Replacement, inputs: Iterable[torch.Tensor], tolerance: float | None = None
) -> bool:
    """Whether `other` computes the same as `own` within `tolerance` (default: rounding); logs if it does not."""
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
    """Yield normally distributed values `[1, rows, width]` for each number of rows."""
    generator = torch.Generator().manual_seed(0)
    for rows in row_counts:
        yield torch.randn(1, rows, width, generator=generator).to(dtype)


def plain(module: nn.Module) -> bool:
    """Whether the module has no hooks, and no own `forward`, that a replacement would lose."""
    return not any((module._forward_hooks, module._forward_pre_hooks, module.__dict__.get("forward")))


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the module called `name` with `module`."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
