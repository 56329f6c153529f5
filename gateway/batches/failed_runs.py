"""Batches whose runs failed for other reasons than an unavailable Redis: they pause, and other batches run instead."""

import time
from collections.abc import Container
from typing import Final

from orcastream.broker.back_off import BackOff

_FIRST_S: Final = 2.0
_MOST_S: Final = 60.0


class FailedRuns:
    """Pauses of failed batches: each failure of a batch doubles its pause, up to a minute."""

    def __init__(self) -> None:
        self._pauses: dict[str, BackOff] = {}
        self._again_at: dict[str, float] = {}

    def add(self, batch_id: str) -> None:
        """Record a failed run of the batch."""
        pause = self._pauses.setdefault(batch_id, BackOff(_FIRST_S, _MOST_S))
        self._again_at[batch_id] = time.monotonic() + pause.failed()

    def pauses(self, batch_id: str) -> bool:
        """Whether it is too early for another run."""
        return time.monotonic() < self._again_at.get(batch_id, float("-inf"))

    def keep(self, open_ids: Container[str]) -> None:
        """Forget batches that are no longer open."""
        for batch_id in [batch_id for batch_id in self._pauses if batch_id not in open_ids]:
            del self._pauses[batch_id], self._again_at[batch_id]
