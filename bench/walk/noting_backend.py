"""An attention backend that records its flat batches."""

from typing import ClassVar

import torch

from orcastream.engine.attention.base import register
from orcastream.engine.attention.torch_backend import TorchBackend
from orcastream.engine.attention.torch_plan import GroupPlan
from orcastream.engine.batch.flat_batch import FlatBatch


@register("noting")
class NotingBackend(TorchBackend):
    """The reference in plain torch; `last` is the batch planned last. Never selected by `auto`."""

    rank = -1
    last: ClassVar[FlatBatch | None] = None

    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> list[GroupPlan]:
        """Plan like the reference."""
        NotingBackend.last = batch
        return super().plan(batch, dtype)
