"""Iteration-level scheduling: which tokens of which requests are computed next."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import IntegrityError
from engine.kv.block_table import BlockTable
from engine.kv.blocks import BlockPool
from engine.request import Request, RequestState
from engine.schedule.policy import Policy
from engine.schedule.pool import RequestPool


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` … `start + length - 1` of one request, computed in one iteration."""

    request: Request
    start: int
    length: int

    @property
    def stop(self) -> int:
        """Tokens in the cache after the iteration."""
        return self.start + self.length

    @property
    def samples(self) -> bool:
        """Whether the span ends at the last known token, so that the next one is sampled from it."""
        return self.stop == len(self.request.tokens)


class _Plan:
    """The spans chosen so far, and what is left of the token budget."""

    def __init__(self, budget: int) -> None:
        self.spans: dict[str, Span] = {}
        self.left = budget

    def add(self, span: Span) -> None:
        self.spans[span.request.id] = span
        self.left -= span.length

    def drop(self, request: Request) -> None:
        span = self.spans.pop(request.id, None)
        self.left += span.length if span else 0


class Scheduler:
    """Plans one iteration at a time (Orca, OSDI'22, Algorithm 1; chunked prefill as in Sarathi-Serve, OSDI'24).

    Within the token budget go first the decoding requests, one token each, so that a long prompt never stalls them;
    then the prefills under way, each by a chunk of what is left of the budget; then new ones, as long as the policy
    admits them. Each group is in order of arrival. The oldest request can take the blocks of all others, and any
    request fits into the pool alone: while there is work, every plan has at least one span.
    """

    def __init__(
        self, requests: RequestPool, blocks: BlockPool, policy: Policy, *, token_budget: int, max_batch_size: int
    ) -> None:
        self.requests = requests
        self.blocks = blocks
        self.policy = policy
        self.token_budget = token_budget
        self.max_batch_size = max_batch_size
        self.preemptions = 0

    def select(self) -> list[Span]:
        """The next iteration's spans, decoding ones first; every token of them has its slot. Empty: no work."""
        plan = _Plan(self.token_budget)
        preemptions = self.preemptions
        self._continue(RequestState.INCREMENT, plan)
        self._continue(RequestState.INITIATION, plan)
        if self.preemptions == preemptions:
            self._admit(plan)
        return list(plan.spans.values())

    def finish(self, request: Request) -> None:
        """Take an unfinished request out, and free what it holds; the caller sets its final state."""
        running = request.state is not RequestState.WAITING
        self.requests.remove(request)
        if running:
            self.policy.released(request)
            self.blocks.release(request.table)

    def _continue(self, state: RequestState, plan: _Plan) -> None:
        for request in [request for request in self.requests.running if request.state is state]:
            length = min(request.num_uncomputed, plan.left)
            if not length:
                return
            if request.state is state and self._make_room(request, request.num_computed + length, plan):
                self._add(request, length, plan)

    def _admit(self, plan: _Plan) -> None:
        while self.requests.waiting and len(self.requests.running) < self.max_batch_size:
            request = self.requests.waiting[0]
            length = min(request.num_uncomputed, plan.left)
            if not length or not self.policy.can_admit(request, self.requests.running):
                return
            self.requests.admit(request)
            self.policy.admitted(request)
            self._add(request, length, plan)

    def _add(self, request: Request, length: int, plan: _Plan) -> None:
        self.blocks.grow(request.table, request.num_computed + length)
        plan.add(Span(request, request.num_computed, length))

    def _make_room(self, request: Request, num_tokens: int, plan: _Plan) -> bool:
        """Preempt until `request` can hold `num_tokens`; False if it was preempted itself."""
        while self.blocks.missing(request.table, num_tokens) > self.blocks.num_free:
            victim = self.policy.victim(self.requests.running)
            self._preempt(victim)
            plan.drop(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request) -> None:
        self.policy.released(victim)
        self.blocks.release(victim.table)
        self.requests.put_back(victim)
        self.preemptions += 1

    def check_integrity(self) -> None:
        """IntegrityError where requests, block tables, reservations and the block pool do not agree."""
        self.requests.check_integrity()
        running = self.requests.running
        if len(running) > self.max_batch_size:
            raise IntegrityError(f"{len(running)} requests run, {self.max_batch_size} may")
        for request in self.requests.waiting:
            if len(request.table) or request.num_computed:
                raise IntegrityError(f"request {request.id!r} waits and holds blocks")
        for request in running:
            if len(request.table) * self.blocks.block_size < request.num_computed:
                raise IntegrityError(f"request {request.id!r} has computed more tokens than its blocks hold")
        self.policy.check_integrity(running)
        self.blocks.check_integrity(_tables(running))


def _tables(requests: Iterable[Request]) -> list[BlockTable]:
    return [request.table for request in requests]
