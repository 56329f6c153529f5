"""The slo policy: least slack first."""

import time
from collections.abc import Sequence

from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.policies.base import PolicyTools, register
from orcastream.engine.schedule.policies.ordered import OrderedPolicy

_PATIENCE_S = 40.0
"""Longest time that a request without a target is deferred."""

_MARGIN_S = 10.0
"""How much more slack a running request must have than the waiting one that preempts it."""


@register("slo")
class LeastSlack(OrderedPolicy):
    """Orders by the slack that remains until the time to first token misses its target, least first.

    Slack is arrival + `ttft_slo_ms` - now - predicted time of the prefill (least laxity, Dertouzos and Mok, IEEE TSE
    1989). Now is the same for all, so the order is that of the latest time at which each prefill can begin, which is
    computed once per request; it is never later than the request's deadline allows. Without a target it is arrival
    + 40 s. As no key is later than that, nothing starves.

    Targets also protect running requests: decode steps with a `tbt_slo_ms` go first, tightest first, then prefills and
    decodes without one by their key; the last in this order is preempted first. A waiting request with less slack than
    a tenth of its target preempts a running one whose key is at least 10 s greater, unless that one decodes with a
    `tbt_slo_ms`.
    """

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._latest: dict[int, float] = {}

    def key(self, request: Request) -> float:
        """Return the latest time at which its prefill should begin, in seconds of `time.monotonic()`."""
        known = self._latest.get(request.arrival)
        if known is None:
            known = self._latest[request.arrival] = self._latest_start(request)
        return known

    def _latest_start(self, request: Request) -> float:
        arrival_s = request.timeline.submitted_s or 0.0
        prefill_s = self.times.prefill_s(len(request.tokens)) or 0.0
        latest_s = arrival_s + _PATIENCE_S
        if request.ttft_slo_ms is not None:
            latest_s = arrival_s + min(_PATIENCE_S, request.ttft_slo_ms / 1000) - prefill_s
        return latest_s if request.deadline_s is None else min(latest_s, request.deadline_s - prefill_s)

    def ended(self, request: Request) -> None:
        """See the base class."""
        self._latest.pop(request.arrival, None)

    def rank(self, request: Request) -> tuple[float, ...]:  # type: ignore[override]
        """Return the sort key of a running request; see the class."""
        if _keeps_pace(request):
            return 0, request.tbt_slo_ms or 0.0, request.arrival
        return 1, self.key(request), request.arrival

    def victim(self, running: Sequence[Request]) -> Request:
        """Return the last request in the order; see the class."""
        return max(running, key=self.rank)

    def makes_way(self, waiting: Request, running: Sequence[Request]) -> Request | None:
        """See the class."""
        last = self._running.head()
        if last is None or not self._at_risk(waiting) or self.key(last) - self.key(waiting) < _MARGIN_S:
            return None
        victim = self.victim(running)
        late = self.key(victim) - self.key(waiting) >= _MARGIN_S
        return victim if late and not _keeps_pace(victim) else None

    def _at_risk(self, waiting: Request) -> bool:
        if waiting.ttft_slo_ms is None or waiting.timeline.first_token_s is not None:
            return False
        return self.key(waiting) - time.monotonic() <= waiting.ttft_slo_ms / 10_000


def _keeps_pace(request: Request) -> bool:
    return request.tbt_slo_ms is not None and request.state is RequestState.INCREMENT
