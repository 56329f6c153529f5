"""Room for those that must go on, at the cost of those that can wait."""

from orcastream.engine.kv.cache import KVCache
from orcastream.engine.request import Request
from orcastream.engine.schedule.policies import Policy
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.swap import Swapper


class Preemptor:
    """Gives running requests their blocks, and takes those of others back where none are free.

    Who leaves, and whether to host memory, is decided by the policy in force, which every call is told.
    """

    def __init__(self, requests: RequestPool, cache: KVCache, swapper: Swapper) -> None:
        self._requests = requests
        self._cache = cache
        self._swapper = swapper
        self.preemptions = 0

    def has_room(self, request: Request, num_tokens: int) -> bool:
        """Whether running `request` can hold `num_tokens`, with blocks that are free if need be."""
        assert request.kv is not None
        return num_tokens <= request.kv.capacity or self._cache.grow(request.kv, request.num_computed, num_tokens)

    def make_room(self, request: Request, num_tokens: int, policy: Policy) -> bool:
        """Preempt until `request` can hold `num_tokens`; False if it was preempted itself, or nobody can be now."""
        while not self.has_room(request, num_tokens):
            victim = self._victim(policy)
            if victim is None:
                return False
            self.preempt(victim, policy)
            if victim is request:
                return False
        return True

    def preempt(self, victim: Request, policy: Policy) -> None:
        """Back to the queue, to be computed again or brought back from host memory."""
        assert victim.kv is not None
        swapped = self._swapper.out(victim.kv) if victim.num_computed and policy.swaps(victim) else None
        policy.memory.give_back(victim)
        policy.left(victim)
        if swapped is None:
            self._cache.close(victim.kv, victim.tokens[: victim.num_computed])
        victim.preempt(swapped)
        self._requests.put_back(victim)
        policy.push(victim)
        self.preemptions += 1

    def _victim(self, policy: Policy) -> Request | None:
        """Who leaves; None while a token is pending of all but the first in the policy's order."""
        running = self._requests.running
        victim = policy.victim(running)
        if not victim.num_pending:
            return victim
        return next((each for each in reversed(policy.order(running)[1:]) if not each.num_pending), None)
