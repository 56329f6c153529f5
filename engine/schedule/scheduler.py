"""Iteration-level scheduling: which tokens of which requests are computed next."""

from engine.errors import IntegrityError
from engine.kv.cache import KVCache
from engine.request import Request, RequestState
from engine.schedule.leaders import GroupLeaders
from engine.schedule.plan import Plan
from engine.schedule.policies import Policy
from engine.schedule.pool import RequestPool
from engine.schedule.relief import MemoryRelief
from engine.schedule.swap import Swapper


class Scheduler:
    """Plans one iteration at a time (Orca, OSDI'22, Algorithm 1; chunked prefill as in Sarathi-Serve, OSDI'24).

    Decoding requests go first, one token each, so that a long prompt never stalls them; then, within what the token
    budget leaves, the prefills under way, each by a chunk; then new ones, as the policy decides. The first request in
    the policy's order can take the blocks of all others, and any request fits into the cache alone: while there is
    work, every plan has at least one token.
    """

    def __init__(self, requests: RequestPool, cache: KVCache, policy: Policy, *, max_batch_size: int) -> None:
        self.requests = requests
        self.cache = cache
        self.policy = policy
        self.max_batch_size = max_batch_size
        self.relief = MemoryRelief(policy.budget.most, max_batch_size)
        self.preemptions = 0
        self.cached_tokens = self.queried_tokens = 0
        self._swapper = Swapper(cache, policy.preemption)
        self._leaders = GroupLeaders()

    @property
    def swaps(self) -> int:
        """Preempted requests that went to host memory."""
        return self._swapper.swaps

    def add(self, request: Request) -> None:
        """A new request waits, or follows one of its group that has not begun and knows the same tokens."""
        leader = self._leader_for(request)
        self.requests.add(request, leader)
        if leader is None:
            self._leaders.add(request)
            if self.cache.prefix_cache:
                request.chain.extend(request.tokens, len(request.tokens), self.cache.block_size)
            self.policy.push(request)

    def select(self) -> Plan:
        """The next iteration; empty: no work, or none until a token that is pending is known."""
        preemptions = self.preemptions
        decodes = self._decodes()
        plan = Plan(decodes, [1] * len(decodes), len(decodes))
        running = self.requests.running
        left = min(self.policy.token_budget(running), self.relief.tokens) - len(decodes)
        if len(decodes) < len(running):
            left = self._continue_prefills(plan, left)
        if self.preemptions == preemptions and self.requests.waiting:
            self._admit(plan, left)
        if not plan.requests and self.requests.running:
            self._unblock(plan)
        return plan

    def switch(self, policy: Policy) -> None:
        """Let another policy decide from the next iteration on; it learns of everybody who waits and runs."""
        for request in self.requests.running:
            policy.push(request)
            policy.remove(request)
            policy.joined(request)
        for request in self.requests.waiting.values():
            policy.push(request)
        self.policy = policy

    def can_plan_ahead(self) -> bool:
        """Whether an iteration can be planned before the tokens of the last one are known.

        Not while somebody may have to be preempted, or is about to split.
        """
        if self.requests.places_held or any(request.beam is not None for request in self.requests.running):
            return False
        left = [r.num_uncomputed if r.state is RequestState.INITIATION else 0 for r in self.requests.running]
        blocks = 2 * len(left) + sum(left) // self.cache.block_size
        return min(group.pool.num_free for group in self.cache.groups) >= blocks

    def relieve(self, plan: Plan) -> bool:
        """The device had no memory for `plan`, which was not launched: plan less; False: it cannot be less."""
        if not self.relief.shrink(plan.num_tokens, len(plan)):
            return False
        left = [request for request in plan.requests if request.state is not RequestState.FINISHED]
        for request in self.policy.order(left)[self.relief.requests :]:
            if not request.num_pending:
                self._preempt(request)
        return True

    def finish(self, request: Request, *, discard: bool = False) -> None:
        """Take an unfinished request out, and free what it holds; the caller sets its final state.

        `discard`: what it computed is not to be trusted, and never reused.
        """
        running = request.state is not RequestState.WAITING
        if running:
            self._leave(request)
        elif self.requests.leader_of(request) is None:
            self.policy.remove(request)
        else:
            self.policy.memory.give_back(request)  # reserved with its leader
        orphans = self.requests.remove(request)
        self._free(request, discard)
        self._leaders.remove(request)
        self.policy.ended(request)
        for orphan in orphans:
            self._leaders.add(orphan)
            self.policy.push(orphan)

    def split(self, leader: Request) -> list[Request]:
        """What `leader` and its followers know is computed: each goes on by itself, with shared blocks."""
        followers = list(leader.followers)
        for follower in followers:
            twin = self.cache.fork(leader.kv, len(follower.tokens)) if leader.kv is not None else None
            if twin is None:
                raise IntegrityError(f"no row is left for {follower.id!r}, whose place was held")
            follower.follow(leader, twin)
            self.requests.split_off(follower)
            self._count(follower, len(follower.prompt_ids))
            self.policy.joined(follower)
        return followers

    def fits_empty(self, request: Request) -> bool:
        """Whether `request`, with all that it will split into, fits into an empty cache at its full length."""
        memory = self.policy.memory
        return memory.has_blocks(memory.most_blocks([request]))

    def spawn(self, hypothesis: Request) -> None:
        """A hypothesis splits off from a beam search; its first request kept a place and memory for it."""
        self.requests.spawn(hypothesis)
        self.policy.memory.take(hypothesis)
        self.policy.joined(hypothesis)

    def begin_beams(self, request: Request) -> None:
        """`request` is a single hypothesis from now on; the places that it held go to those that are spawned."""
        self.policy.memory.give_back(request)
        self.requests.places_held -= request.places - 1
        request.hypotheses = [request]
        self.policy.memory.take(request)

    def _leader_for(self, request: Request) -> Request | None:
        if request.group is None or request.beam is not None:
            return None
        for other in self._leaders.waiting(request):
            group = [other, *other.followers, request]
            if len(group) <= self.max_batch_size and self.policy.memory.can_ever_fit(group):
                return other
        return None

    def _decodes(self) -> list[Request]:
        """All decoding requests whose next token has a slot, after preempting others for it if need be."""
        decoding = RequestState.INCREMENT
        decodes = [each for each in self.requests.running if each.state is decoding and each.plannable]
        short = [each for each in decodes if each.num_computed >= each.kv.capacity]  # type: ignore[union-attr]
        if not short:
            return decodes
        scarce = any(group.pool.num_free < len(short) for group in self.cache.groups)  # each takes one block at most
        first = self.policy.order(short) if scarce else short
        lacking = [each for each in first if not self._has_room(each, each.num_computed + 1)]
        if not lacking:
            return decodes
        for request in lacking:
            if request.state is decoding:
                self._make_room(request, request.num_computed + 1)
        return [each for each in decodes if each.state is decoding and each.num_computed < each.kv.capacity]  # type: ignore[union-attr]

    def _continue_prefills(self, plan: Plan, left: int) -> int:
        preemptions = self.preemptions
        prefills = [request for request in self.requests.running if request.state is RequestState.INITIATION]
        for request in self.policy.order(prefills) if len(prefills) > 1 else prefills:
            length = self._chunk(request, left, alone=len(plan.requests) == plan.num_decodes)
            if not length:
                break
            if request.state is RequestState.INITIATION and self._make_room(request, request.num_computed + length):
                plan.requests.append(request)
                plan.lengths.append(length)
                left -= length
        return left if self.preemptions == preemptions else left + self._without_preempted(plan)

    def _chunk(self, request: Request, left: int, *, alone: bool) -> int:
        """Tokens of `request` to compute: all, or what fits, up to the end of a block.

        Less than up to the end of a block where it is the `alone` prefill, so that it never stands still.
        """
        start, wanted = request.num_computed, request.num_uncomputed
        if wanted <= left:
            return wanted
        aligned = (start + left) // self.cache.block_size * self.cache.block_size - start
        return aligned if aligned > 0 else max(left, 0) * alone

    def _without_preempted(self, plan: Plan) -> int:
        """Drop from `plan` what was preempted after it had been planned; the tokens that this sets free."""
        kept = [
            (request, length)
            for request, length in zip(plan.requests, plan.lengths, strict=True)
            if request.state is not RequestState.WAITING
        ]
        if len(kept) == len(plan):
            return 0
        before = plan.num_tokens
        plan.requests, plan.lengths = [request for request, _ in kept], [length for _, length in kept]
        plan.num_decodes = sum(request.state is RequestState.INCREMENT for request in plan.requests)
        return before - plan.num_tokens

    def _admit(self, plan: Plan, left: int) -> None:
        """Let waiting requests join while budget, places and memory last."""
        aside: list[Request] = []
        while left > 0 or not plan.requests:
            request = self.policy.head()
            if request is None or len(aside) == self.max_batch_size:
                break
            if not self._can_join(request):
                victim = self.policy.makes_way(request, self.requests.running)
                if victim is None or victim.num_pending:
                    break
                self._preempt(victim)
                left += self._without_preempted(plan)
                continue
            self.policy.remove(request)
            if request.swapped is None and self.cache.awaits(request.chain, len(request.tokens)):
                aside.append(request)  # a running prefill is about to compute what this one can reuse
                continue
            left -= self._join(request, plan, left)
        for request in aside:
            self.policy.push(request)

    def _unblock(self, plan: Plan) -> None:
        """Where all that run are hypotheses that wait for others which find no room: the first search goes on alone."""
        running = self.requests.running
        if any(each.candidates is None for each in running):
            return  # a token is pending
        search = self.policy.order(running)[0].hypotheses
        for other in [each for each in running if each.hypotheses is not search]:
            self._preempt(other)
        left = min(self.policy.token_budget(running), self.relief.tokens)
        for hypothesis in search:
            if hypothesis.state is RequestState.WAITING:
                self.policy.remove(hypothesis)
                left -= self._join(hypothesis, plan, left)

    def _can_join(self, request: Request) -> bool:
        taken = self.requests.places_taken
        # Whoever splits needs its places at once, so that one request may run however little the device has room for.
        most = min(self.max_batch_size, self.relief.requests) if taken else self.max_batch_size
        return request.places <= most - taken and self.policy.may_join(request, self.requests.running)

    def _join(self, request: Request, plan: Plan, left: int) -> int:
        """Let `request` enter the batch; what that takes of the budget."""
        if request.swapped is not None:
            self._swapper.back(request, request.swapped)
        else:
            kv, cached = self.cache.open(request.chain, len(request.tokens), request.tokens)
            request.initiate(kv, cached)
            self._count(request, cached)
        self.requests.run(request)
        self.policy.memory.take(request)
        self.policy.joined(request)
        decodes = request.state is RequestState.INCREMENT
        alone = len(plan.requests) == plan.num_decodes
        length = self._chunk(request, max(left, int(not plan.requests)), alone=alone)
        if not length or not self._has_room(request, request.num_computed + length):
            return left  # it has its place, and nobody joins behind it in this iteration
        where = plan.num_decodes if decodes else len(plan.requests)
        plan.requests.insert(where, request)
        plan.lengths.insert(where, length)
        plan.num_decodes += decodes
        return length

    def _count(self, request: Request, cached: int) -> None:
        self.queried_tokens += len(request.prompt_ids)
        self.cached_tokens += min(cached, len(request.prompt_ids))

    def _has_room(self, request: Request, num_tokens: int) -> bool:
        assert request.kv is not None
        return num_tokens <= request.kv.capacity or self.cache.grow(request.kv, request.num_computed, num_tokens)

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Preempt until `request` can hold `num_tokens`; False if it was preempted itself, or nobody can be now."""
        while not self._has_room(request, num_tokens):
            victim = self._victim()
            if victim is None:
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _victim(self) -> Request | None:
        """Who leaves; None while a token is pending of all but the first in the policy's order."""
        running = self.requests.running
        victim = self.policy.victim(running)
        if not victim.num_pending:
            return victim
        return next((each for each in reversed(self.policy.order(running)[1:]) if not each.num_pending), None)

    def _preempt(self, victim: Request) -> None:
        """Back to the queue, to be computed again or brought back from host memory."""
        assert victim.kv is not None
        swapped = self._swapper.out(victim.kv) if victim.num_computed and self.policy.swaps(victim) else None
        self._leave(victim)
        if swapped is None:
            self.cache.close(victim.kv, victim.tokens[: victim.num_computed])
        victim.preempt(swapped)
        self.requests.put_back(victim)
        self.policy.push(victim)
        self.preemptions += 1

    def _leave(self, request: Request) -> None:
        self.policy.memory.give_back(request)
        self.policy.left(request)

    def _free(self, request: Request, discard: bool) -> None:
        if request.kv is not None:
            if discard:
                self.cache.discard(request.kv)
            else:
                self.cache.close(request.kv, request.tokens[: request.num_computed])
            request.kv = None
        if request.swapped is not None:
            self.cache.drop(request.swapped)
            request.swapped = None

    def check_integrity(self) -> None:
        """IntegrityError where requests, cache, policy and memory rule do not agree."""
        self.requests.check_integrity()
        running = self.requests.running
        if self.requests.places_taken > self.max_batch_size:
            raise IntegrityError(f"{self.requests.places_taken} places are taken of {self.max_batch_size}")
        for request in self.requests.waiting.values():
            if request.kv is not None or (request.num_computed and request.swapped is None):
                raise IntegrityError(f"request {request.id!r} waits and holds blocks")
        for request in running:
            if request.kv is None or len(request.kv) * self.cache.block_size < request.num_computed:
                raise IntegrityError(f"request {request.id!r} has computed more tokens than its blocks hold")
        if self.cache.num_sequences != len(running):
            raise IntegrityError(f"{self.cache.num_sequences} sequences are open for {len(running)} running requests")
        self.policy.check_integrity(list(self.requests.waiting.values()), running)
        self.policy.memory.check_integrity(running)
        self.cache.check_integrity()
