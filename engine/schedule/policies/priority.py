"""The priority policy: priority classes that age at different speeds."""

import time
from collections.abc import Callable, Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from orcastream.engine.schedule.policies.base import Policy, PolicyTools, register
from orcastream.schemas.keys import CLASSES, class_weights

_URGENT = CLASSES[0]

_HEAD_START_S = 1.0
"""Minimum age that counts for an urgent request when it asks for the place of a running one."""


@register("priority")
class AccumulatingPriority(Policy):
    """Orders by age times `class_weight` for each class below the request's own, greatest first.

    Classes are realtime, high, normal and low. Priority accumulates while a request waits (Kleinrock, 1964; Stanford,
    Taylor and Ziedins, 2014): the mean waits of two neighboring classes keep the ratio `class_weight` however long the
    queue is, and nothing starves, because a waiting request gains on all later arrivals. Within a class the order is
    that of arrival, so only the heads are compared.

    When places or memory are lacking, a waiting realtime request preempts the running request of a lower class that has
    accumulated least, if that is less than it has accumulated itself (counting at least one second). A request that has
    waited and run for long is thus not displaced. When blocks run out, the request that has accumulated least is
    preempted.
    """

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._weights = class_weights(self.class_weight)
        self._waiting = {name: RequestHeap(_since_s) for name in CLASSES}

    def push(self, request: Request) -> None:
        """Queue `request` in its class, by arrival."""
        self._waiting[request.priority_class].push(request)

    def head(self) -> Request | None:
        """Return the class head that has accumulated most."""
        heads = [head for queue in self._waiting.values() if (head := queue.head()) is not None]
        return min(heads, key=self._order_at(time.monotonic())) if heads else None

    def remove(self, request: Request) -> None:
        """See the base class."""
        self._waiting[request.priority_class].remove(request)

    def precedes(self, waiting: Request, prefill: Request) -> bool:
        """Whether `waiting` has accumulated more."""
        now_s = time.monotonic()
        return self._accumulated(waiting, now_s) > self._accumulated(prefill, now_s)

    def order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return `requests` by accumulated priority, greatest first."""
        return sorted(requests, key=self._order_at(time.monotonic()))

    def makes_way(self, waiting: Request, running: Sequence[Request]) -> Request | None:
        """See the class."""
        if waiting.priority_class != _URGENT:
            return None
        now_s = time.monotonic()
        enough = self._weights[_URGENT] * max(now_s - _since_s(waiting), _HEAD_START_S)
        lower = [other for other in running if other.priority_class != _URGENT]
        victim = max(lower, key=self._order_at(now_s), default=None)
        return victim if victim is not None and self._accumulated(victim, now_s) < enough else None

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """Raise IntegrityError unless the queues hold exactly the waiting requests, each in its class."""
        for name, queue in self._waiting.items():
            if {request.id for request in queue} != {each.id for each in waiting if each.priority_class == name}:
                raise IntegrityError(f"the queue of class {name} and the waiting requests differ")

    def _accumulated(self, request: Request, now_s: float) -> float:
        return self._weights[request.priority_class] * (now_s - _since_s(request))

    def _order_at(self, now_s: float) -> Callable[[Request], tuple[float, int]]:
        """Return the sort key at one moment: greatest first, then earlier arrival."""
        return lambda request: (-self._accumulated(request, now_s), request.arrival)


def _since_s(request: Request) -> float:
    """Return when it began to wait, here or in the queue that it came from; seconds of `time.monotonic()`."""
    return (request.timeline.submitted_s or 0.0) - request.waited_s
