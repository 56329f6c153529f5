"""First come, first served."""

from collections.abc import Sequence

from engine.errors import IntegrityError
from engine.request import Request
from engine.schedule.policies.base import Policy, PolicyTools, register
from engine.schedule.queue import WaitingQueue


@register("fcfs")
class FirstComeFirstServed(Policy):
    """Orca's order (OSDI'22, Algorithm 1): by arrival, and the first that does not fit holds up those behind it.

    A preempted request returns to its place, and the latest arrival is preempted first: nobody is overtaken.
    """

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._waiting = WaitingQueue()

    def push(self, request: Request) -> None:
        """By arrival."""
        self._waiting.push(request)

    def head(self) -> Request | None:
        """The earliest arrival."""
        return self._waiting.head()

    def remove(self, request: Request) -> None:
        """See the base class."""
        self._waiting.remove(request)

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """The queue holds those who wait."""
        if {request.id for request in self._waiting} != {request.id for request in waiting}:
            raise IntegrityError("the policy's queue and the waiting requests differ")
