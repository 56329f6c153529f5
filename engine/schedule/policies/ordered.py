"""The base of policies that order requests by a fixed key."""

from abc import abstractmethod
from collections.abc import Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from orcastream.engine.schedule.policies.base import Policy, PolicyTools


class OrderedPolicy(Policy):
    """Orders requests by a key that never changes, then by arrival; the last is preempted first.

    The first request that does not fit blocks those after it, so that small requests cannot overtake a large one
    forever. As keys never change, a preempted request returns to its position, and no two displace each other
    alternately.
    """

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._waiting = RequestHeap(self.key)
        self._running = RequestHeap(lambda request: (-self.key(request), -request.arrival))

    @abstractmethod
    def key(self, request: Request) -> float:
        """Return the key of `request`, which never changes; the lowest key goes first."""

    def rank(self, request: Request) -> tuple[float, int]:
        """Return its key, then its arrival."""
        return self.key(request), request.arrival

    def push(self, request: Request) -> None:
        """Queue `request` by its key."""
        self._waiting.push(request)

    def head(self) -> Request | None:
        """Return the waiting request with the lowest key."""
        return self._waiting.head()

    def remove(self, request: Request) -> None:
        """See the base class."""
        self._waiting.remove(request)

    def precedes(self, waiting: Request, prefill: Request) -> bool:
        """Whether `waiting` has the lower key; on a tie the running prefill continues."""
        return self.key(waiting) < self.key(prefill)

    def joined(self, request: Request) -> None:
        """See the base class."""
        self._running.push(request)

    def left(self, request: Request) -> None:
        """See the base class."""
        self._running.remove(request)

    def order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return `requests` by their keys."""
        return sorted(requests, key=self.rank)

    def victim(self, running: Sequence[Request]) -> Request:
        """Return the request with the greatest key, found without a scan."""
        return self._running.head() or super().victim(running)

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """Raise IntegrityError unless the queues hold exactly the waiting and the running requests."""
        for name, queue, members in (("waiting", self._waiting, waiting), ("running", self._running, running)):
            if {request.id for request in queue} != {request.id for request in members}:
                raise IntegrityError(f"the policy's queue and the {name} requests differ")
