"""First come, first served."""

from orcastream.engine.request import Request
from orcastream.engine.schedule.policies.base import register
from orcastream.engine.schedule.policies.ordered import OrderedPolicy


@register("fcfs")
class FirstComeFirstServed(OrderedPolicy):
    """Orca's order (OSDI'22, Algorithm 1): by arrival, and the first that does not fit holds up those behind it.

    A preempted request returns to its place, and the latest arrival is preempted first: nobody is overtaken, and
    nothing starves.
    """

    def key(self, request: Request) -> float:
        """Arrival alone decides."""
        return 0.0
