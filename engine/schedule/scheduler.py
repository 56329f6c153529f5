"""Iteration-level scheduling: plans which tokens of which requests are computed next."""

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.admission import Admission
from orcastream.engine.schedule.isolation import Isolation
from orcastream.engine.schedule.plan import Plan, chunk_length
from orcastream.engine.schedule.policies import Policy
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.preemptor import Preemptor
from orcastream.engine.schedule.relief import MemoryRelief
from orcastream.engine.schedule.swap import Swapper


class Scheduler:
    """Plans one iteration at a time (Orca, OSDI'22, Algorithm 1; chunked prefill as in Sarathi-Serve, OSDI'24).

    Decoding requests come first, one token each, so that a long prompt never stalls them. The rest of the token budget
    goes to a chunk of each running prefill, before each of which the waiting requests that precede it join, and then
    to other waiting requests, all in the policy's order. The first request in that order can take the blocks of all
    others, and any request fits into the cache alone: while there is work, every plan has at least one token.
    """

    def __init__(self, requests: RequestPool, cache: KVCache, policy: Policy, *, max_batch_size: int) -> None:
        self.requests = requests
        self.cache = cache
        self.policy = policy
        self.max_batch_size = max_batch_size
        self.relief = MemoryRelief(policy.budget.most, max_batch_size)
        self._left_for_prompts = policy.budget.most
        """Tokens of the last iteration that were not for decode steps."""
        self._swapper = Swapper(cache, policy.preemption)
        self._preemptor = Preemptor(requests, cache, self._swapper)
        self._admission = Admission(
            requests, cache, self._preemptor, self._swapper, self.relief, max_batch_size=max_batch_size
        )
        self.isolation = Isolation(requests, self._admission, self._preemptor, block_size=cache.block_size)

    @property
    def preemptions(self) -> int:
        """Number of times that a running request was returned to the queue."""
        return self._preemptor.preemptions

    @property
    def swaps(self) -> int:
        """Preemptions that swapped to host memory."""
        return self._swapper.swaps

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the cache when their requests joined."""
        return self._admission.cached_tokens

    @property
    def queried_tokens(self) -> int:
        """Prompt tokens of all admitted requests."""
        return self._admission.queried_tokens

    @property
    def begins_soon(self) -> bool:
        """Whether the last plan left no waiting request out for lack of a place or memory, or because of the policy,
        and less is left of all prompts than two such iterations can compute. Any thread may read this.
        """
        return not self._admission.lacks_room and self.requests.prompt_tokens_left < 2 * self._left_for_prompts

    def add(self, request: Request) -> None:
        """Add a new request: it waits, or follows one of its group that has not begun and knows the same tokens."""
        leader = self._admission.leader_for(request, self.policy)
        self.requests.add(request, leader)
        if leader is None:
            self._wait(request)

    def select(self) -> Plan:
        """Plan the next iteration; empty if there is no work, or a pending token must be known first."""
        self._admission.lacks_room = self.isolation.active
        if self.isolation.active:
            plan = self.isolation.select(self.policy, min(self.policy.budget.most, self.relief.tokens))
            if plan.requests or any(request.num_pending for request in self.requests.running):
                return plan
        preemptions = self.preemptions
        self._admission.awaits_victim = False
        decodes = self._decodes()
        plan = Plan(decodes, [1] * len(decodes), len(decodes))
        running = self.requests.running
        left = min(self.policy.token_budget(running), self.relief.tokens) - len(decodes)
        self._left_for_prompts = left
        if len(decodes) < len(running):
            left = self._continue_prefills(plan, left, preemptions)
        if self.preemptions != preemptions:
            self._admission.lacks_room = True
        elif self.requests.waiting:
            self._admission.admit(plan, left, self.policy)
        if not plan.requests and self.requests.running:
            self._admission.unblock(plan, self.policy)
        return plan

    def switch(self, policy: Policy) -> None:
        """Let another policy decide from the next iteration on; it is given all waiting and running requests."""
        for request in self.requests.running:
            policy.push(request)
            policy.remove(request)
            policy.joined(request)
        for request in self.requests.waiting.values():
            policy.push(request)
        self.policy = policy

    def can_plan_ahead(self) -> bool:
        """Whether an iteration can be planned before the tokens of the last one are known.

        Not while a request may have to be preempted, or is about to split.
        """
        if self._admission.awaits_victim or self.requests.places_held:
            return False
        if any(request.beam is not None for request in self.requests.running):
            return False
        left = [r.num_uncomputed if r.state is RequestState.INITIATION else 0 for r in self.requests.running]
        blocks = 2 * len(left) + sum(left) // self.cache.block_size
        return min(group.pool.num_free for group in self.cache.groups) >= blocks

    def relieve(self, plan: Plan) -> bool:
        """Plan less, after device memory did not suffice for `plan`. Return False if a plan cannot be smaller."""
        if not self.relief.shrink(plan.num_tokens, len(plan)):
            return False
        left = [request for request in plan.requests if request.state is not RequestState.FINISHED]
        for request in self.policy.order(left)[self.relief.requests :]:
            if not request.num_pending:
                self._preemptor.preempt(request, self.policy)
        return True

    def finish(self, request: Request, *, discard: bool = False) -> None:
        """Remove an unfinished request and free its memory; the caller sets its final state.

        With `discard` its computed tokens are not trusted, and never reused.
        """
        if request.state is not RequestState.WAITING:
            self.policy.memory.give_back(request)
            self.policy.left(request)
        elif self.requests.leader_of(request) is None:
            self.policy.remove(request)
        else:
            self.policy.memory.give_back(request)  # reserved with its leader
        orphans = self.requests.remove(request)
        self._free(request, discard)
        self._admission.leaders.remove(request)
        self.policy.ended(request)
        for orphan in orphans:
            self._wait(orphan)

    def split(self, leader: Request) -> list[Request]:
        """Let `leader` and its followers continue on their own, with shared blocks: the known tokens are computed."""
        followers = list(leader.followers)
        for follower in followers:
            twin = self.cache.fork(leader.kv, len(follower.tokens)) if leader.kv is not None else None
            if twin is None:
                raise IntegrityError(f"no row is left for {follower.id!r}, whose place was held")
            follower.follow(leader, twin)
            self.requests.split_off(follower)
            self._admission.count(follower, len(follower.prompt_ids))
            self.policy.joined(follower)
        return followers

    def fits_empty(self, request: Request, max_tokens: int) -> bool:
        """Whether new `request`, and all requests that it splits into, fit an empty cache with `max_tokens` outputs."""
        blocks = self.cache.most_blocks(len(request.prompt_ids) + max_tokens)
        return self.policy.memory.has_blocks([request.places * each for each in blocks])

    def spawn(self, hypothesis: Request, root: Request, number: int) -> None:
        """Add hypothesis `number` of the beam search `root`, which reserved a place and memory for it."""
        self.requests.spawn(hypothesis, root, number)
        self.policy.memory.take(hypothesis)
        self.policy.joined(hypothesis)

    def begin_beams(self, request: Request) -> None:
        """Turn `request` into a single hypothesis; its reserved places go to the hypotheses that are spawned."""
        self.policy.memory.give_back(request)
        self.requests.begin_search(request)
        self.policy.memory.take(request)

    def _wait(self, request: Request) -> None:
        """Let `request` wait on its own, following no other."""
        self._admission.leaders.add(request)
        if self.cache.prefix_cache:
            request.chain.extend(request.tokens, len(request.tokens), self.cache.block_size)
        self.policy.push(request)

    def _decodes(self) -> list[Request]:
        """Return all decoding requests whose next token has a slot, after preempting others if necessary."""
        decoding = RequestState.INCREMENT
        decodes = [each for each in self.requests.running if each.state is decoding and each.plannable]
        short = [each for each in decodes if each.num_computed >= each.kv.capacity]  # type: ignore[union-attr]
        if not short:
            return decodes
        scarce = any(group.pool.num_free < len(short) for group in self.cache.groups)  # each takes one block at most
        first = self.policy.order(short) if scarce else short
        lacking = [each for each in first if not self._preemptor.has_room(each, each.num_computed + 1)]
        if not lacking:
            return decodes
        for request in lacking:
            if request.state is decoding:
                self._preemptor.make_room(request, request.num_computed + 1, self.policy)
        return [each for each in decodes if each.state is decoding and each.num_computed < each.kv.capacity]  # type: ignore[union-attr]

    def _continue_prefills(self, plan: Plan, left: int, preemptions: int) -> int:
        """Add a chunk of each running prefill, after waiting requests that precede it. Return the rest of the budget.

        No request joins once the number of preemptions exceeds `preemptions`.
        """
        prefills = [request for request in self.requests.running if request.state is RequestState.INITIATION]
        for request in self.policy.order(prefills) if len(prefills) > 1 else prefills:
            if self.preemptions == preemptions and self.requests.waiting:
                left = self._admission.admit(plan, left, self.policy, before=request)
            if request.state is not RequestState.INITIATION:
                continue  # it was preempted by one that joined
            most = plan.left_for(request, left)
            length = chunk_length(request, most, self.cache.block_size, alone=not plan.num_prefills)
            if not length:
                if most < left:
                    continue
                break
            stop = request.num_computed + length
            if self._preemptor.make_room(request, stop, self.policy):
                plan.add(request, length)
                left -= length
        return left if self.preemptions == preemptions else left + plan.drop_preempted()

    def _free(self, request: Request, discard: bool) -> None:
        if request.kv is not None:
            if discard:
                self.cache.discard(request.kv)
            else:
                self.cache.close(request.kv, request.tokens[: request.num_computed])
            request.kv = None
        elif discard:  # it was preempted before its failure was known
            self.cache.distrust(request.chain)
        if request.swapped is not None:
            self.cache.drop(request.swapped)
            request.swapped = None

    def check_integrity(self) -> None:
        """Raise IntegrityError if requests, cache, policy and memory rule disagree."""
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
