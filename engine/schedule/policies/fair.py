"""The fair policy: fair shares of tenants."""

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from orcastream.engine.schedule.policies.base import Policy, PolicyTools, register

if TYPE_CHECKING:
    from orcastream.engine.record import IterationRecord

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""Weights of a computed prompt token and a generated token, as in the paper."""
_IDLE_TENANTS = 1024


class _Tenant:
    """The service that one tenant has received, and its waiting and running requests."""

    __slots__ = ("name", "running", "served", "turn", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.served = 0.0
        self.turn = 0
        """Sequence number of the latest join of one of its requests; 0 if none has joined."""
        self.waiting = RequestHeap()
        self.running: dict[int, int] = {}
        """Number of counted outputs of each running request, by arrival."""

    @property
    def rank(self) -> tuple[float, int, str]:
        """Its counter, then its last turn, so that equally served tenants alternate; never decreases."""
        return self.served, self.turn, self.name


class _Prompt:
    """The known tokens with which a request first joined, and how many of them are counted or need no counting."""

    __slots__ = ("counted", "length", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.counted, self.length = request.cached_tokens, len(request.tokens)


@register("fair")
class FairShares(Policy):
    """The virtual token counter of 'Fairness in Serving Large Language Models' (Sheng et al., OSDI'24).

    A tenant's counter grows by 1 for each prompt token that is computed for it and by 2 for each generated token. When
    a request joins, as much of its prompt as one iteration can compute is counted; the rest is counted as its chunks
    are computed, so that a long prompt shares the token budget with others. The tenant with the lowest counter is next,
    with its earliest request. Tokens recomputed after a preemption and tokens from the prefix cache are not counted. A
    tenant with no other waiting request is lifted to the lowest counter of the waiting tenants (if none waits: to that
    of the tenant served last) when a new request arrives, so that no tenant accumulates credit while idle. The paper's
    bound follows: of two waiting tenants, neither gets more than a constant ahead, however much it sends. Within a
    tenant order is first come, first served, so nothing starves.

    When blocks run out, the latest request of the most served tenant is preempted. When places or memory are lacking
    and the next tenant runs fewer requests than an equal share of the places, the most served of the tenants that run
    more than their share gives up its latest request: at once if the next tenant runs nothing, otherwise only if the
    lead in counters is worth more than recomputing that request. A request that was preempted before is exempt, or a
    tenant with many short requests would cause long ones to be recomputed again and again.
    """

    sees_all = True

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._tenants: dict[str, _Tenant] = {}
        self._active: dict[str, _Tenant] = {}
        """Tenants with running requests."""
        self._queue: list[tuple[tuple[float, int, str], _Tenant]] = []
        """A heap of tenants with waiting requests, each once, by a rank that may have risen since."""
        self._queued: set[str] = set()
        self._requests: dict[int, Request] = {}
        """Running requests by arrival."""
        self._prompts: dict[int, _Prompt] = {}
        """Prompts of unfinished requests that are not fully counted yet, by arrival."""
        self._newest = -1
        self._turns = 0
        self._last: _Tenant | None = None
        self._most_idle = _IDLE_TENANTS

    # -- waiting requests ---------------------------------------------------------------------------------------

    def push(self, request: Request) -> None:
        """Queue `request` with its tenant, whose counter is lifted if the request is new and no other of it waits."""
        tenant = self._tenant(request.tenant)
        if request.arrival > self._newest:
            self._newest = request.arrival + request.places - 1  # hypotheses of a beam search are not new
            if not tenant.waiting:
                self._lift(tenant)
        tenant.waiting.push(request)
        if tenant.name not in self._queued:
            self._queued.add(tenant.name)
            heappush(self._queue, (tenant.rank, tenant))

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= self._most_idle:
                self._forget_idle()
            tenant = self._tenants[name] = _Tenant(name)
        return tenant

    def _lift(self, tenant: _Tenant) -> None:
        level = self._least() or self._last
        if level is not None:
            tenant.served = max(tenant.served, level.served)

    def _forget_idle(self) -> None:
        """Drop tenants without requests whose counters would be lifted anyway on their return."""
        level = self._least() or self._last
        for tenant in list(self._tenants.values()):
            idle = tenant.name not in self._queued and not tenant.running and tenant is not self._last
            if idle and level is not None and tenant.served <= level.served:
                del self._tenants[tenant.name]
        self._most_idle = 2 * len(self._tenants) + _IDLE_TENANTS

    def _least(self) -> _Tenant | None:
        """Return the waiting tenant with the lowest counter."""
        while self._queue:
            rank, tenant = self._queue[0]
            if not tenant.waiting:
                heappop(self._queue)
                self._queued.remove(tenant.name)
            elif rank != tenant.rank:
                heapreplace(self._queue, (tenant.rank, tenant))
            else:
                return tenant
        return None

    def head(self) -> Request | None:
        """Return the earliest request of the least served tenant; on a tie, of the one whose turn was longest ago."""
        tenant = self._least()
        return None if tenant is None else tenant.waiting.head()

    def remove(self, request: Request) -> None:
        """See the base class."""
        self._tenants[request.tenant].waiting.remove(request)

    # -- running requests ---------------------------------------------------------------------------------------

    def joined(self, request: Request) -> None:
        """Count the beginning of its prompt, unless it joins again after a preemption."""
        tenant = self._tenant(request.tenant)
        if not request.timeline.preempted_s:
            self._prompts[request.arrival] = _Prompt(request)
            self._count_prompt(request, request.num_computed + self.budget.most)
        tenant.running[request.arrival] = request.num_outputs
        self._requests[request.arrival] = request
        self._turns += 1
        tenant.turn = self._turns
        self._active[tenant.name] = self._last = tenant

    def precedes(self, waiting: Request, prefill: Request) -> bool:
        """Whether the tenant of `waiting` was served less."""
        return self._tenants[waiting.tenant].rank < self._tenants[prefill.tenant].rank

    def left(self, request: Request) -> None:
        """See the base class."""
        tenant = self._tenants[request.tenant]
        self._count_outputs(tenant, request)
        del tenant.running[request.arrival], self._requests[request.arrival]
        if not tenant.running:
            del self._active[tenant.name]

    def observe(self, record: "IterationRecord") -> None:
        """Count the tokens that were computed and generated."""
        super().observe(record)
        for prompt in list(self._prompts.values()):
            self._count_prompt(prompt.request, prompt.request.num_computed)
        for request in self._requests.values():
            self._count_outputs(self._tenants[request.tenant], request)

    def _count_prompt(self, request: Request, num_computed: int) -> None:
        prompt = self._prompts[request.arrival]
        stop = min(num_computed, prompt.length)
        if stop > prompt.counted:
            self._tenants[request.tenant].served += INPUT_WEIGHT * (stop - prompt.counted)
            prompt.counted = stop
        if prompt.counted == prompt.length:
            del self._prompts[request.arrival]

    def _count_outputs(self, tenant: _Tenant, request: Request) -> None:
        generated = request.num_outputs
        tenant.served += OUTPUT_WEIGHT * (generated - tenant.running[request.arrival])
        tenant.running[request.arrival] = generated

    def ended(self, request: Request) -> None:
        """See the base class."""
        self._prompts.pop(request.arrival, None)

    def order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return `requests`, those of the least served tenants first."""
        return sorted(requests, key=self._rank)

    def victim(self, running: Sequence[Request]) -> Request:
        """Return the latest request of the most served tenant."""
        return max(running, key=self._rank)

    def _rank(self, request: Request) -> tuple[tuple[float, int, str], int]:
        return self._tenants[request.tenant].rank, request.arrival

    def makes_way(self, waiting: Request, running: Sequence[Request]) -> Request | None:
        """See the class."""
        tenant = self._tenants[waiting.tenant]
        share = self.max_batch_size // (len(self._active) + (tenant.name not in self._active))
        if len(tenant.running) + waiting.places > share:
            return None
        heavy = [each for each in self._active.values() if len(each.running) > share]
        for most in sorted(heavy, key=lambda each: each.rank, reverse=True):
            fresh = [arrival for arrival in most.running if not self._requests[arrival].timeline.preempted_s]
            if fresh:
                victim = self._requests[max(fresh)]
                lead = most.served - tenant.served
                return victim if not tenant.running or lead > INPUT_WEIGHT * len(victim.tokens) else None
        return None

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """Raise IntegrityError if bookkeeping and requests differ, or a tenant is missing from the queue."""
        tenants = self._tenants.values()
        if {request.id for tenant in tenants for request in tenant.waiting} != {request.id for request in waiting}:
            raise IntegrityError("the tenants' queues and the waiting requests differ")
        arrivals = {request.arrival for request in running}
        if {arrival for tenant in tenants for arrival in tenant.running} != arrivals or set(self._requests) != arrivals:
            raise IntegrityError("the tenants' running requests and those that run differ")
        if not set(self._prompts) <= arrivals | {request.arrival for request in waiting}:
            raise IntegrityError("a prompt is counted of a request that has ended")
        if {tenant.name for tenant in tenants if tenant.running} != set(self._active):
            raise IntegrityError("tenants with running requests and active tenants differ")
        if not {tenant.name for tenant in tenants if tenant.waiting} <= self._queued:
            raise IntegrityError("a tenant with waiting requests is not in the queue")
