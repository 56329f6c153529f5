"""Priority classes with aging."""

from collections.abc import Sequence

from engine.request import Request
from engine.schedule.policies.base import register
from engine.schedule.policies.ordered import OrderedPolicy
from schemas.keys import CLASSES

_RANK = {name: rank for rank, name in enumerate(CLASSES)}


@register("priority")
class Priority(OrderedPolicy):
    """By class (realtime, high, normal, low), where `aging_s` seconds of waiting lift a request by one class.

    Both in one key that never changes: time of arrival + rank of the class · `aging_s` (aging as in Silberschatz,
    Operating System Concepts, 5.3.4, by differences instead of increments). So nothing starves: a request of rank r is
    overtaken by those alone that arrive within r · `aging_s` seconds after it.

    When places or memory are lacking, a waiting realtime request makes running ones leave, the greatest key first,
    whose key is at least a whole class greater than its own. That cannot swing to and fro: whoever left has the greater
    key, and stays behind.
    """

    def key(self, request: Request) -> float:
        """Seconds of `time.monotonic()`."""
        return (request.timeline.submitted_s or 0.0) + _RANK[request.priority_class] * self.aging_s

    def makes_way(self, waiting: Request, running: Sequence[Request]) -> Request | None:
        """See the class."""
        if _RANK[waiting.priority_class] or not running:
            return None
        victim = self.victim(running)
        return victim if self.key(victim) - self.key(waiting) >= self.aging_s else None
