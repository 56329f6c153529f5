"""The fcfs policy: first come, first served."""

from orcastream.engine.request import Request
from orcastream.engine.schedule.policies.base import register
from orcastream.engine.schedule.policies.ordered import OrderedPolicy


@register("fcfs")
class FirstComeFirstServed(OrderedPolicy):
    """Orca's order (OSDI'22, Algorithm 1): by arrival; the first request that does not fit blocks those after it.

    A preempted request returns to its position, and the latest arrival is preempted first: no request is overtaken, and
    nothing starves.
    """

    def key(self, request: Request) -> float:
        """Return a constant: arrival alone decides."""
        return 0.0
