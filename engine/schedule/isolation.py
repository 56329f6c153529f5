"""Isolation: computing some requests alone while all others pause."""

from collections.abc import Collection

from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.admission import Admission
from orcastream.engine.schedule.plan import Plan, chunk_length
from orcastream.engine.schedule.policies import Policy
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.preemptor import Preemptor


class Isolation:
    """Plans iterations of only the requests in `request_ids`, while any of them is unfinished.

    The others keep their places and blocks, unless the isolated requests need them.
    """

    def __init__(self, requests: RequestPool, admission: Admission, preemptor: Preemptor, *, block_size: int) -> None:
        self._requests = requests
        self._block_size = block_size
        self._admission = admission
        self._preemptor = preemptor
        self.request_ids: Collection[str] = ()

    @property
    def active(self) -> bool:
        """Whether any unfinished request is isolated."""
        return any(request_id in self._requests for request_id in self.request_ids)

    def select(self, policy: Policy, left: int) -> Plan:
        """Plan the next iteration, of at most `left` tokens; empty if a pending token must be known first."""
        plan = Plan()
        for request in [each for each in self._requests.running if self._is_alone(each)]:
            if request.state is RequestState.INCREMENT:
                if request.plannable and self._make_room(request, request.num_computed + 1, policy):
                    plan.add(request, 1)
                    left -= 1
            elif request.state is RequestState.INITIATION:
                most = plan.left_for(request, max(left, 0))
                length = chunk_length(request, most, self._block_size, alone=not plan.num_prefills)
                if length and self._make_room(request, request.num_computed + length, policy):
                    plan.add(request, length)
                    left -= length
        for request in [each for each in self._requests.waiting.values() if self._is_alone(each)]:
            if self._admission.lacks_rows(request, plan, left):
                continue
            while not self._can_join(request, policy) and self._preempt_another(policy):
                pass
            if (left > 0 or not plan.requests) and self._can_join(request, policy):
                policy.remove(request)
                left -= self._admission.join(request, plan, left, policy)
        plan.drop_preempted()
        return plan

    def _is_alone(self, request: Request) -> bool:
        root = request.hypotheses[0] if request.hypotheses else request
        return root.id in self.request_ids

    def _can_join(self, request: Request, policy: Policy) -> bool:
        """Whether places and memory allow `request` to join; the policy is not asked."""
        return self._admission.has_places(request) and policy.memory.fits(request)

    def _make_room(self, request: Request, num_tokens: int, policy: Policy) -> bool:
        while not self._preemptor.has_room(request, num_tokens):
            if not self._preempt_another(policy):
                return self._preemptor.make_room(request, num_tokens, policy)
        return True

    def _preempt_another(self, policy: Policy) -> bool:
        """Preempt one paused request. Return False if there is none, or each has a pending token."""
        for other in reversed(policy.order(self._requests.running)):
            if not self._is_alone(other) and not other.num_pending:
                self._preemptor.preempt(other, policy)
                return True
        return False
