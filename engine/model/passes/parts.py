"""The parts of a module, by their names."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from torch import nn

from orcastream.engine.model.passes.other_kind import OtherKind, expect

ACTIVATION_NAMES = ("act_fn", "activation_fn", "act")

T = TypeVar("T")


def parts_of(module: nn.Module) -> set[str]:
    """Return the names of children that compute something, without activations."""
    idle = (nn.Dropout, nn.Identity)
    return {
        name for name, child in module.named_children() if not isinstance(child, idle) and name not in ACTIVATION_NAMES
    }


def take(parts: set[str], kinds: Sequence[tuple[str, ...]], what: str) -> tuple[str, ...]:
    """Remove the first kind, of which all names are in `parts`, from them, and return it."""
    for names in kinds:
        if parts.issuperset(names):
            parts.difference_update(names)
            return names
    raise OtherKind(f"{what} of other parts")


def only(values: Collection[T], what: str) -> T:
    """Return the only value."""
    expect(len(values) == 1, f"several {what}")
    return next(iter(values))
