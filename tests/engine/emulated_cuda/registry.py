"""The registry of the device that currently replaces torch.cuda.

All other modules may import this one, and it imports none of them, so streams, graphs and tensors reach the device
without a circular import.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tests.engine.emulated_cuda.device import EmulatedCuda

DEVICE = torch.device("cuda", 0)
"""The only device that torch sees while an emulated one is registered."""

_DEVICES: list["EmulatedCuda"] = []


@contextmanager
def registered(device: "EmulatedCuda") -> Iterator[None]:
    """Make `device` the current one inside the block. Blocks can be nested; the innermost one counts."""
    _DEVICES.append(device)
    try:
        yield
    finally:
        _DEVICES.pop()


def current() -> "EmulatedCuda":
    """Return the device of the innermost `registered` block. Raises RuntimeError outside such a block."""
    if not _DEVICES:
        raise RuntimeError("no emulated CUDA device: the test has left the emulated_cuda() block")
    return _DEVICES[-1]


def is_registered() -> bool:
    """Return whether there is a current device."""
    return bool(_DEVICES)
