"""All batches that have not ended, as one gateway sees them now and then."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orcastream.broker.jobs.order import JobOrder, JobProgress
from orcastream.gateway.batches.batch_object import status_of

WAITING: Final = "waiting"
"""Nobody runs it."""
STATES: Final = (WAITING, "validating", "in_progress", "finalizing", "cancelling")


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """One of them; `runs`: some gateway has the right to run it."""

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
    """What an operator would know of them. Times in seconds, 0 where there is none."""

    states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    lines_left: int = 0
    """Lines without a result, of batches whose input was read."""
    age_s: float = 0
    """Of the oldest."""
    idle_s: float = 0
    """How long the one that has come no further for longest has not; waits for a turn left out."""


_Seen = tuple[JobProgress, int]
"""How far a batch is, and since when, its wait for a turn left out. [Unix ms of the server]"""


class OpenBatchWatch:
    """Remembers when it saw each batch come further: another result, or another mark. Times are the server's."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, batches: Sequence[OpenBatch], now_ms: int, *, has_room: bool) -> OpenBatches:
        """What is to be told of them; `has_room`: this gateway would run another one, so none has to wait."""
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
