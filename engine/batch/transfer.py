"""Transfers several small arrays to the device in one copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def copied(values: npt.ArrayLike, device: torch.device) -> torch.Tensor:
    """Return numbers of 64 bits on `device`, int64 or float64, without blocking the host."""
    array = np.asarray(values)
    if array.dtype != np.float64:
        array = array.astype(np.int64)
    (there,) = unpacked(packed([array.view(np.int64)], device).to(device, non_blocking=True), [array])
    return there.view(torch.float64) if array.dtype == np.float64 else there


def packed(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> torch.Tensor:
    """Return `arrays` as int64, end to end, on the host; page-locked for CUDA, or copying would wait for the device."""
    flat = torch.empty(sum(array.size for array in arrays), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate([array.reshape(-1) for array in arrays], out=flat.numpy(), casting="same_kind")
    return flat


def unpacked(flat: torch.Tensor, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Return views of `flat` in the shapes of `arrays`, which were packed."""
    parts = torch.split(flat, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
