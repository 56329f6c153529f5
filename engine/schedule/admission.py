"""Admission of waiting requests to the batch."""

from orcastream.engine.kv.cache import KVCache
from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.leaders import GroupLeaders
from orcastream.engine.schedule.plan import Plan, chunk_length
from orcastream.engine.schedule.policies import Policy
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.preemptor import Preemptor
from orcastream.engine.schedule.relief import MemoryRelief
from orcastream.engine.schedule.swap import Swapper


class Admission:
    """Admits requests in the order of the current policy while places, memory and the token budget last.

    Every call receives that policy.
    """

    def __init__(
        self,
        requests: RequestPool,
        cache: KVCache,
        preemptor: Preemptor,
        swapper: Swapper,
        relief: MemoryRelief,
        *,
        max_batch_size: int,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._preemptor = preemptor
        self._swapper = swapper
        self._relief = relief
        self._max_batch_size = max_batch_size
        self.leaders = GroupLeaders()
        self.cached_tokens = self.queried_tokens = 0
        """Of the prompts of all admitted requests: tokens found in the cache, and all tokens."""
        self.awaits_victim = False
        """Whether the head can join once a pending token is known, because the request of that token is preempted then.
        The scheduler resets it in each iteration."""
        self.lacks_room = False
        """Whether the head had no place or memory, or had to wait for the policy. The scheduler resets it, too."""

    def leader_for(self, request: Request, policy: Policy) -> Request | None:
        """Return the request that new `request` may follow: a waiting one of its group that can split into all."""
        if request.group is None or request.beam is not None or request.tells_prompt:
            return None
        for other in self.leaders.waiting(request):
            group = [other, *other.followers, request]
            if len(group) <= self._max_batch_size and policy.memory.can_ever_fit(group):
                return other
        return None

    def admit(self, plan: Plan, left: int, policy: Policy, before: Request | None = None) -> int:
        """Admit waiting requests to batch and `plan` while places, memory and the `left` tokens of the budget last.

        With `before`, a running prefill, admit only requests that precede it. Return the tokens that are left.
        """
        aside: list[Request] = []
        while left > 0 or not plan.requests:
            request = policy.head()
            if request is None or len(aside) == self._max_batch_size:
                break
            if before is not None and not policy.precedes(request, before):
                break
            if self.lacks_rows(request, plan, left):
                policy.remove(request)
                aside.append(request)
                continue
            has_room, freed = self._find_room(request, plan, policy)
            left += freed
            if not has_room:
                self.lacks_room = True
                break
            if self._awaits_prefix(request):
                if before is not None:
                    break  # it may await `before`, which no later request in the order may overtake then
                policy.remove(request)
                aside.append(request)
                continue
            policy.remove(request)
            length = self.join(request, plan, left, policy)
            if not length and plan.requests:
                break  # it has its place, but no tokens in this iteration: no other joins after it
            left -= length
        if left <= 0 and before is None and (head := policy.head()) is not None:
            self.lacks_room |= not self._can_join(head, policy)
        for request in aside:
            policy.push(request)
        return left

    def unblock(self, plan: Plan, policy: Policy) -> None:
        """If only hypotheses run, and all wait for others that lack memory, let the first search continue alone."""
        running = self._requests.running
        if any(each.candidates is None for each in running):
            return  # a token is pending
        search = policy.order(running)[0].hypotheses
        for other in [each for each in running if each.hypotheses is not search]:
            self._preemptor.preempt(other, policy)
        left = min(policy.token_budget(running), self._relief.tokens)
        for hypothesis in search:
            if hypothesis.state is RequestState.WAITING:
                policy.remove(hypothesis)
                left -= self.join(hypothesis, plan, left, policy)

    def count(self, request: Request, cached: int) -> None:
        """Count `request`, which has joined the batch with `cached` tokens already computed."""
        self.queried_tokens += len(request.prompt_ids)
        self.cached_tokens += min(cached, len(request.prompt_ids))

    def _find_room(self, request: Request, plan: Plan, policy: Policy) -> tuple[bool, int]:
        """Preempt until `request`, the head, can join. Return whether it can, and the tokens freed in `plan`.

        The policy is not asked for the head again in between: it might name a request that was preempted for it.
        """
        freed = 0
        while not self._can_join(request, policy):
            victim = policy.makes_way(request, self._requests.running)
            if victim is None or self._awaits_prefix(request):
                return False, freed
            if victim.num_pending:
                self.awaits_victim = True
                return False, freed
            self._preemptor.preempt(victim, policy)
            freed += plan.drop_preempted()
        return True, freed

    def _can_join(self, request: Request, policy: Policy) -> bool:
        return self.has_places(request) and policy.may_join(request, self._requests.running)

    def _awaits_prefix(self, request: Request) -> bool:
        """Whether a running prefill is about to compute blocks that waiting `request` can reuse."""
        return request.swapped is None and self._cache.awaits(request.chain, request.num_matchable)

    def lacks_rows(self, request: Request, plan: Plan, left: int) -> bool:
        """Whether waiting `request` would compute nothing because others in `plan` use all rows for prompt logprobs.

        Never true if `plan` is empty. Checked before any request is preempted for it, which would be in vain.
        """
        most = plan.left_for(request, left)
        return most < left and not chunk_length(request, most, self._cache.block_size, alone=not plan.num_prefills)

    def has_places(self, request: Request) -> bool:
        """Whether there are places in the batch for waiting `request`."""
        taken = self._requests.places_taken
        # A request that splits needs all its places at once: one may always run, even if device memory limits requests.
        most = min(self._max_batch_size, self._relief.requests) if taken else self._max_batch_size
        return request.places <= most - taken

    def join(self, request: Request, plan: Plan, left: int, policy: Policy) -> int:
        """Add `request` to the batch. Return its tokens in `plan`: 0 if budget or memory do not suffice now."""
        if request.swapped is None or not self._swapper.back(request, request.swapped):
            kv, cached = self._cache.open(request.chain, request.num_matchable, request.tokens)
            request.initiate(kv, cached)
            self.count(request, cached)
        self._requests.run(request)
        policy.memory.take(request)
        policy.joined(request)
        budget = plan.left_for(request, max(left, int(not plan.requests)))
        length = chunk_length(request, budget, self._cache.block_size, alone=not plan.num_prefills)
        if not length or not self._preemptor.has_room(request, request.num_computed + length):
            return 0
        plan.add(request, length)
        return length
