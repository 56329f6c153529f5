"""What policies share that go by a key of each request."""

from abc import abstractmethod
from collections.abc import Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from orcastream.engine.schedule.policies.base import Policy, PolicyTools


class OrderedPolicy(Policy):
    """Requests in the order of a key that each keeps for life, then by arrival; the last is preempted first.

    The first that does not fit holds up those behind it, so that a large request is not overtaken for ever by small
    ones. As keys never change, a preempted request returns to its place, and no two displace each other in turn.
    """

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._waiting = RequestHeap(self.key)
        self._running = RequestHeap(lambda request: (-self.key(request), -request.arrival))

    @abstractmethod
    def key(self, request: Request) -> float:
        """Whoever has the least goes first; always the same for one request."""

    def rank(self, request: Request) -> tuple[float, int]:
        """Its key, and its arrival among equals."""
        return self.key(request), request.arrival

    def push(self, request: Request) -> None:
        """By its key."""
        self._waiting.push(request)

    def head(self) -> Request | None:
        """The least key."""
        return self._waiting.head()

    def remove(self, request: Request) -> None:
        """See the base class."""
        self._waiting.remove(request)

    def precedes(self, waiting: Request, prefill: Request) -> bool:
        """By their keys; among equals the prefill under way goes on."""
        return self.key(waiting) < self.key(prefill)

    def joined(self, request: Request) -> None:
        """See the base class."""
        self._running.push(request)

    def left(self, request: Request) -> None:
        """See the base class."""
        self._running.remove(request)

    def order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """By their keys."""
        return sorted(requests, key=self.rank)

    def victim(self, running: Sequence[Request]) -> Request:
        """The greatest key, found without a look at all the others."""
        return self._running.head() or super().victim(running)

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """The queues hold those who wait, and those who run."""
        for name, queue, members in (("waiting", self._waiting, waiting), ("running", self._running, running)):
            if {request.id for request in queue} != {request.id for request in members}:
                raise IntegrityError(f"the policy's queue and the {name} requests differ")
