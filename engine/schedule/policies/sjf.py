"""The sjf policy: shortest job first."""

from orcastream.engine.request import Request
from orcastream.engine.schedule.policies.base import register
from orcastream.engine.schedule.policies.ordered import OrderedPolicy


@register("sjf")
class ShortestJobFirst(OrderedPolicy):
    """Orders by prompt + max_tokens, shortest first, which minimizes the mean completion time if the bound is close to
    the generated length (Smith, Naval Research Logistics Quarterly 1956). The longest is preempted first.

    **Long requests can wait for as long as short ones keep coming**, even in the middle of their prompt: nothing ages.
    Use it if the load has pauses, or `priority` if everything must be served in time.
    """

    def key(self, request: Request) -> float:
        """Return the most tokens that it can reach."""
        return request.most_tokens
