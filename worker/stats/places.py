"""Assigns the requests of the batch to numbered slots."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from orcastream.engine import Request, RequestState


@dataclass(eq=False, slots=True)
class Occupant:
    """One request in one slot, from joining the batch to leaving it. Times by `time.monotonic()`."""

    request: Request
    place: int
    joined_s: float
    num_preemptions: int
    """How often it had been preempted when it joined."""
    number: int
    """Unique among all occupants ever."""
    continued: bool = False

    def left(self) -> tuple[float, str] | None:
        """Return when it left the batch and why, by the engine's own timestamps; None: it is still there."""
        line = self.request.timeline
        if len(line.preempted_s) > self.num_preemptions:
            return line.preempted_s[self.num_preemptions], "preempted"
        if self.request.state is RequestState.FINISHED and line.finished_s is not None:
            return line.finished_s, "withdrawn" if self.request.finish_reason is None else "finished"
        return None


_numbers = count()


class Places:
    """Numbers the requests of the batch: a new one gets the lowest free number.

    The engine itself has no order of slots; pictures do. Call `seat` with the batch of each iteration in order.
    """

    def __init__(self) -> None:
        self._by_request: dict[Request, Occupant] = {}
        self._free: list[int] = []
        self._most = 0

    def __iter__(self) -> Iterator[Occupant]:
        return iter(self._by_request.values())

    def seat(self, requests: Sequence[Request], begin_s: float) -> tuple[list[Occupant], list[Occupant]]:
        """Return the occupants of an iteration that began at `begin_s`, span by span, and those that left by then."""
        left = self._clear(begin_s)
        return [self._by_request.get(request) or self._join(request, begin_s) for request in requests], left

    def clear_left(self) -> list[Occupant]:
        """Remove and return the occupants that have left."""
        return self._clear(float("inf"))

    def _clear(self, before_s: float) -> list[Occupant]:
        gone = [one for one in self if (left := one.left()) is not None and left[0] <= before_s]
        for one in gone:
            del self._by_request[one.request]
            heappush(self._free, one.place)
        return gone

    def _join(self, request: Request, at_s: float) -> Occupant:
        if self._free:
            place = heappop(self._free)
        else:
            place, self._most = self._most, self._most + 1
        stamps: Iterable[float] = request.timeline.preempted_s
        occupant = Occupant(request, place, at_s, sum(stamp <= at_s for stamp in stamps), next(_numbers))
        self._by_request[request] = occupant
        return occupant
