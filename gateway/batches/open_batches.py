"""All unfinished batches, as one gateway sees them periodically."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orcastream.broker.jobs.order import JobOrder, JobProgress
from orcastream.gateway.batches.batch_object import status_of

WAITING: Final = "waiting"
"""No gateway runs the batch."""
STATES: Final = (WAITING, "validating", "in_progress", "finalizing", "cancelling")


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """One unfinished batch; `runs`: some gateway holds the lease to run it."""

    id: str
    order: JobOrder
    progress: JobProgress
    runs: bool

    @property
    def state(self) -> str:
        """One of STATES."""
        return status_of(self.progress) if self.runs else WAITING


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """What operators monitor about open batches. Times in seconds, 0 if there is no batch."""

    states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    lines_left: int = 0
    """Lines without a result, in batches whose input was read."""
    age_s: float = 0
    """Age of the oldest batch."""
    idle_s: float = 0
    """Longest time without progress of any batch, not counting waits for a runner."""


_Seen = tuple[JobProgress, int]
"""A batch's progress, and since when it is unchanged, not counting its wait for a runner. [Unix ms of the server]"""


class OpenBatchWatch:
    """Remembers when each batch last progressed: another result or another mark. Times are the server's."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, batches: Sequence[OpenBatch], now_ms: int, *, has_room: bool) -> OpenBatches:
        """Return the values to report; `has_room`: this gateway would run another batch, so no batch has to wait."""
        before = {one.id: self._seen.get(one.id) for one in batches if one.runs or has_room}
        self._seen = {one.id: self._moved(before.get(one.id), one.progress, now_ms) for one in batches}
        states = dict.fromkeys(STATES, 0)
        for one in batches:
            states[one.state] += 1
        return OpenBatches(
            states,
            sum(one.progress.left or 0 for one in batches),
            _longest_s([one.order.created_ms for one in batches], now_ms),
            _longest_s([since_ms for _, since_ms in self._seen.values()], now_ms),
        )

    @staticmethod
    def _moved(before: _Seen | None, progress: JobProgress, now_ms: int) -> _Seen:
        return before if before is not None and before[0] == progress else (progress, now_ms)


def _longest_s(begins_ms: Iterable[int], now_ms: int) -> float:
    return max((max(0, now_ms - begin_ms) / 1000 for begin_ms in begins_ms), default=0.0)
