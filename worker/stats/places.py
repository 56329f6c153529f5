"""Who is in which place of the batch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from orcastream.engine import Request, RequestState


@dataclass(eq=False, slots=True)
class Occupant:
    """One request in one place, from joining the batch to leaving it. Times by `time.monotonic()`."""

    request: Request
    place: int
    joined_s: float
    num_preemptions: int
    """How often it had been preempted when it joined."""
    number: int
    """Tells all occupants there ever were apart."""
    continued: bool = False

    def left(self) -> tuple[float, str] | None:
        """When it left the batch and why, told by the engine's own stamps; None: it is there."""
        line = self.request.timeline
        if len(line.preempted_s) > self.num_preemptions:
            return line.preempted_s[self.num_preemptions], "preempted"
        if self.request.state is RequestState.FINISHED and line.finished_s is not None:
            return line.finished_s, "withdrawn" if self.request.finish_reason is None else "finished"
        return None


_numbers = count()


class Places:
    """Numbers the requests of the batch: whoever joins gets the lowest number that is free.

    The engine itself knows no order of places; pictures do. `seat` is called with the batch of each iteration in turn.
    """

    def __init__(self) -> None:
        self._by_request: dict[Request, Occupant] = {}
        self._free: list[int] = []
        self._most = 0

    def __iter__(self) -> Iterator[Occupant]:
        return iter(self._by_request.values())

    def seat(self, requests: Sequence[Request], begin_s: float) -> tuple[list[Occupant], list[Occupant]]:
        """The occupants of an iteration that began at `begin_s`, span by span, and those that had left by then."""
        left = self._clear(begin_s)
        return [self._by_request.get(request) or self._join(request, begin_s) for request in requests], left

    def clear_left(self) -> list[Occupant]:
        """Those that are not there any more."""
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
