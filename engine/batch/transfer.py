"""Transfers several small arrays to the device in one copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def copied(values: npt.ArrayLike, device: torch.device) -> torch.Tensor:
    """Return numbers on `device` as `all_copied` does."""
    return all_copied([np.asarray(values)], device)[0]


def all_copied(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return `arrays` on `device` in one copy that does not block the host: float64 if they are, otherwise int64.

    On a CPU arrays of these types are not copied.
    """
    if device.type == "cpu":
        kinds = [np.float64 if array.dtype.kind == "f" else np.int64 for array in arrays]
        return [torch.from_numpy(np.asarray(*each, order="C")) for each in zip(arrays, kinds, strict=True)]
    numbers = [array.view(np.int64) if array.dtype.kind == "f" else array for array in arrays]
    parts = unpacked(packed(numbers, device).to(device, non_blocking=True), arrays)
    return [
        part.view(torch.float64) if array.dtype.kind == "f" else part for part, array in zip(parts, arrays, strict=True)
    ]


def packed(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> torch.Tensor:
    """Return `arrays` as int64, end to end, on the host; page-locked for CUDA, or copying would wait for the device."""
    flat = torch.empty(sum(array.size for array in arrays), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate([array.reshape(-1) for array in arrays], out=flat.numpy(), casting="same_kind")
    return flat


def unpacked(flat: torch.Tensor, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Return views of `flat` in the shapes of `arrays`, which were packed."""
    parts = torch.split(flat, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
