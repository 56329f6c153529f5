"""Shortest job first."""

from orcastream.engine.request import Request
from orcastream.engine.schedule.policies.base import register
from orcastream.engine.schedule.policies.ordered import OrderedPolicy


@register("sjf")
class ShortestJobFirst(OrderedPolicy):
    """By prompt + max_tokens, the shortest first, which makes the mean time to finish least if the bound is near what
    requests really generate (Smith, Naval Research Logistics Quarterly 1956). The longest is preempted first.

    **Long requests can wait for as long as short ones keep coming**, also in the midst of their prompt: nothing here
    ages. Use it where the load has pauses, or `priority` where everything must be served in time.
    """

    def key(self, request: Request) -> float:
        """Tokens that it can come to."""
        return request.most_tokens
