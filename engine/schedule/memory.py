"""Memory rules: when there is memory for one more request."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.request import Request, RequestState


class MemoryRule(ABC):
    """Decides which requests fit into the KV cache; `take` and `give_back` track requests that join and leave it."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    @abstractmethod
    def fits(self, request: Request) -> bool:
        """Whether waiting `request` fits next to the running ones; if none runs, true for any that fits an empty cache.

        Called for each request that joins: its cost must not grow with the number of running ones.
        """

    @abstractmethod
    def can_ever_fit(self, requests: Sequence[Request]) -> bool:
        """Whether all `requests` together fit into an empty cache."""

    def most_blocks(self, requests: Sequence[Request]) -> list[int]:
        """Return the most blocks per group that `requests` may hold together; a beam search that has not begun counts
        once per hypothesis, later its hypotheses are counted individually."""
        total = [0] * len(self.cache.groups)
        for request in requests:
            times = request.beam.width if request.beam is not None and not request.hypotheses else 1
            most = self.cache.most_blocks(request.most_tokens)
            total = [a + times * b for a, b in zip(total, most, strict=True)]
        return total

    def has_blocks(self, demand: Sequence[int]) -> bool:
        """Whether an empty cache has `demand` blocks per group."""
        return all(wanted <= group.pool.num_blocks for wanted, group in zip(demand, self.cache.groups, strict=True))

    def take(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """Note that `request` has joined the batch."""

    def give_back(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """Note that `request` has left the batch."""

    def slots_held(self) -> int:
        """Return the number of token slots in held or reserved blocks, over all groups."""
        return self.cache.blocks_used * self.cache.block_size

    def check_integrity(self, running: Sequence[Request]) -> None:  # noqa: B027  (nothing to do by default)
        """Raise IntegrityError if the bookkeeping does not match the running requests."""


class OnDemand(MemoryRule):
    """Allocates blocks as they are needed (PagedAttention, SOSP'23, section 4.5).

    A request joins if all its known tokens and one more fit in addition to the blocks that running prefills still need:
    it never takes the blocks of a running prefill. Blocks for later decoding are not reserved: when they run out, a
    request is preempted.
    """

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache)
        self._prefills: dict[str, Request] = {}
        """The running prefills that may lack blocks: few, as most get all their blocks when they join."""

    def fits(self, request: Request) -> bool:
        """See the class; a swapped-out request needs the blocks that it held, and one more to continue."""
        for served in [each for each in self._prefills.values() if not self._may_lack(each)]:
            del self._prefills[served.id]
        beside = [(each.kv, len(each.tokens)) for each in self._prefills.values() if each.kv is not None]
        if request.swapped is None:
            return self.cache.fits(request.chain, len(request.tokens), beside, matchable=request.num_matchable)
        return self.cache.can_swap_in(request.swapped, beside)

    def _may_lack(self, request: Request) -> bool:
        """Whether running `request` is a prefill that lacks blocks; once it is not, it never is again."""
        if request.state is not RequestState.INITIATION or request.kv is None:
            return False
        return self.cache.may_lack(request.kv, len(request.tokens))

    def take(self, request: Request) -> None:
        """See the base class."""
        if request.state is RequestState.INITIATION:
            self._prefills[request.id] = request

    def give_back(self, request: Request) -> None:
        """See the base class."""
        self._prefills.pop(request.id, None)

    def can_ever_fit(self, requests: Sequence[Request]) -> bool:
        """Return True: any accepted request fits, and requests that share a prompt take turns if necessary."""
        return True

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Raise IntegrityError unless all running prefills that lack blocks are known, and no request that has left."""
        lacking = {each.id for each in running if self._may_lack(each)}
        if not lacking <= self._prefills.keys() <= {each.id for each in running}:
            raise IntegrityError(f"the prefills {lacking} lack blocks, noted are {set(self._prefills)}")


class Reserve(MemoryRule):
    """Orca's Algorithm 1 (OSDI'22, section 4.1), with blocks for slots.

    A request joins only if prompt + max_tokens fit in addition to all reservations, and keeps its reservation until it
    leaves. A running request therefore never lacks a block, and none is ever preempted for lack of blocks.
    """

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache)
        self._reserved: dict[str, list[int]] = {}
        self._total = [0] * len(cache.groups)

    def fits(self, request: Request) -> bool:
        """Algorithm 1, line 25: the reservation must fit."""
        return self.has_blocks(_sum(self.most_blocks([request, *request.followers]), self._total))

    def can_ever_fit(self, requests: Sequence[Request]) -> bool:
        """Whether all their reservations fit together."""
        return self.has_blocks(self.most_blocks(requests))

    def take(self, request: Request) -> None:
        """Reserve blocks for `request` and its followers; a former follower already has its reservation."""
        for each in (request, *request.followers):
            if each.id not in self._reserved:
                self._reserved[each.id] = self.most_blocks([each])
                self._total = _sum(self._total, self._reserved[each.id])

    def give_back(self, request: Request) -> None:
        """Release the reservations of `request` and its followers."""
        for each in (request, *request.followers):
            reserved = self._reserved.pop(each.id, [0] * len(self._total))
            self._total = [a - b for a, b in zip(self._total, reserved, strict=True)]

    def slots_held(self) -> int:
        """Return the number of reserved token slots."""
        return sum(self._total) * self.cache.block_size

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Raise IntegrityError unless each running request and follower has a reservation, and all fit the pools."""
        if set(self._reserved) != {each.id for request in running for each in (request, *request.followers)}:
            raise IntegrityError("reservations and running requests differ")
        totals = [sum(column) for column in zip(*self._reserved.values(), strict=True)] or [0] * len(self._total)
        if totals != self._total or not self.has_blocks(totals):
            raise IntegrityError(f"{self._total} blocks are reserved, {totals} by requests")


def _sum(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(some, others, strict=True)]


MEMORY_RULES: dict[str, type[MemoryRule]] = {"paged": OnDemand, "reserve": Reserve}
"""The memory rule for each value of EngineConfig.admission."""
