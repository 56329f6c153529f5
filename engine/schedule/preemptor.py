"""Preemption: frees blocks for requests that must continue by preempting those that can wait."""

from orcastream.engine.kv.cache import KVCache
from orcastream.engine.request import Request
from orcastream.engine.schedule.policies import Policy
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.swap import Swapper


class Preemptor:
    """Gives running requests their blocks, and preempts others if none are free.

    The current policy, which every call receives, decides which request is preempted, and whether to host memory.
    """

    def __init__(self, requests: RequestPool, cache: KVCache, swapper: Swapper) -> None:
        self._requests = requests
        self._cache = cache
        self._swapper = swapper
        self.preemptions = 0

    def has_room(self, request: Request, num_tokens: int) -> bool:
        """Whether running `request` can hold `num_tokens`; takes free blocks if necessary."""
        assert request.kv is not None
        return num_tokens <= request.kv.capacity or self._cache.grow(request.kv, request.num_computed, num_tokens)

    def make_room(self, request: Request, num_tokens: int, policy: Policy) -> bool:
        """Preempt until `request` can hold `num_tokens`; return False if it was preempted itself, or none can be."""
        while not self.has_room(request, num_tokens):
            victim = self._victim(policy)
            if victim is None:
                return False
            self.preempt(victim, policy)
            if victim is request:
                return False
        return True

    def preempt(self, victim: Request, policy: Policy) -> None:
        """Return `victim` to the queue, to be recomputed or swapped in from host memory."""
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
        """Return the request to preempt; None while all but the first in the policy's order have a pending token."""
        running = self._requests.running
        victim = policy.victim(running)
        if not victim.num_pending:
            return victim
        return next((each for each in reversed(policy.order(running)[1:]) if not each.num_pending), None)
