"""Arrays of any shape are transferred as one."""

from typing import Any

import numpy as np
import torch

from orcastream.engine.batch.transfer import packed, unpacked


def test_packed_arrays_are_unpacked_in_their_shapes(device: torch.device) -> None:
    arrays: list[Any] = [np.arange(3), np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 4), dtype=np.int64)]
    flat = packed(arrays, device)
    assert flat.dtype is torch.int64
    assert flat.is_pinned() == (device.type == "cuda")
    for part, array in zip(unpacked(flat.to(device, non_blocking=True), arrays), arrays, strict=True):
        assert part.tolist() == array.tolist()
