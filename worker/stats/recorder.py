"""The records of the latest iterations, kept while somebody watches."""

from collections import deque
from typing import Final

from orcastream.engine import IterationRecord

MOST_RECORDS: Final = 4096
"""Beyond this the oldest are dropped: Redis may be down while the engine computes."""


class IterationRecorder:
    """Filled by the engine's thread, emptied on the event loop. An iteration costs a check of `on`, or an append."""

    def __init__(self) -> None:
        self.on = False
        self._records: deque[IterationRecord] = deque(maxlen=MOST_RECORDS)

    def iterated(self, record: IterationRecord) -> None:
        """Record a completed iteration, if `on`."""
        if self.on:
            self._records.append(record)

    def take(self) -> list[IterationRecord]:
        """Return the iterations completed since the last call."""
        return [self._records.popleft() for _ in range(len(self._records))]
