"""Errors after which a device computes nothing more."""

import torch

LOST_DEVICE: tuple[type[Exception], ...] = tuple(
    getattr(torch, name) for name in ("AcceleratorError",) if hasattr(torch, name)
)
"""No single request causes them, so nobody tries again: they are raised."""
