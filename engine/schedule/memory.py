"""When there is memory for one more request."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.request import Request, RequestState


class MemoryRule(ABC):
    """Says who finds room in the KV cache; `take` and `give_back` are called as requests join and leave the batch."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    @abstractmethod
    def fits(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether `request`, waiting, finds room beside `running`; always true for one that fits an empty cache."""

    @abstractmethod
    def can_ever_fit(self, requests: Sequence[Request]) -> bool:
        """Whether all of them together find room in an empty cache."""

    def most_blocks(self, requests: Sequence[Request]) -> list[int]:
        """Blocks per group that `requests` may come to hold together; a beam search that has not begun needs them for
        each of its hypotheses, which speak for themselves afterwards."""
        total = [0] * len(self.cache.groups)
        for request in requests:
            times = request.beam.width if request.beam is not None and not request.hypotheses else 1
            most = self.cache.most_blocks(request.most_tokens)
            total = [a + times * b for a, b in zip(total, most, strict=True)]
        return total

    def has_blocks(self, demand: Sequence[int]) -> bool:
        """Whether an empty cache has so many blocks per group."""
        return all(wanted <= group.pool.num_blocks for wanted, group in zip(demand, self.cache.groups, strict=True))

    def take(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` has joined the batch."""

    def give_back(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` has left the batch."""

    def slots_held(self) -> int:
        """Token slots that are spoken for, in blocks that are held or reserved, over all groups."""
        return self.cache.blocks_used * self.cache.block_size

    def check_integrity(self, running: Sequence[Request]) -> None:  # noqa: B027  (nothing to do by default)
        """IntegrityError where the books do not match what runs."""


class OnDemand(MemoryRule):
    """Blocks as they are needed (PagedAttention, SOSP'23, section 4.5).

    A request joins if all its known tokens and one more find room beside what the running prefills still need: it
    never takes the blocks of a prefill under way. What decoding needs later is not set aside: when it runs out,
    somebody is preempted.
    """

    def fits(self, request: Request, running: Sequence[Request]) -> bool:
        """See above; one that was swapped out needs what it held, and one block to go on with."""
        beside = [
            (other.kv, len(other.tokens))
            for other in running
            if other.state is RequestState.INITIATION and other.kv is not None
        ]
        if request.swapped is None:
            return self.cache.fits(request.chain, len(request.tokens), beside, matchable=request.num_matchable)
        return self.cache.can_swap_in(request.swapped, beside)

    def can_ever_fit(self, requests: Sequence[Request]) -> bool:
        """Any request that was accepted does, and those that share a prompt take turns if need be."""
        return True


class Reserve(MemoryRule):
    """Orca's Algorithm 1 (OSDI'22, section 4.1), with blocks for slots.

    A request joins only if prompt + max_tokens still fit beside all reservations, and keeps that reservation until it
    leaves. So a running request never lacks a block, and nobody is ever preempted for want of one.
    """

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache)
        self._reserved: dict[str, list[int]] = {}
        self._total = [0] * len(cache.groups)

    def fits(self, request: Request, running: Sequence[Request]) -> bool:
        """Algorithm 1, line 25: the reservation must fit."""
        return self.has_blocks(_sum(self.most_blocks([request, *request.followers]), self._total))

    def can_ever_fit(self, requests: Sequence[Request]) -> bool:
        """Their reservations do, together."""
        return self.has_blocks(self.most_blocks(requests))

    def take(self, request: Request) -> None:
        """Reserve, for those that follow it too; one that followed has its reservation already."""
        for each in (request, *request.followers):
            if each.id not in self._reserved:
                self._reserved[each.id] = self.most_blocks([each])
                self._total = _sum(self._total, self._reserved[each.id])

    def give_back(self, request: Request) -> None:
        """The reservation ends, with those of its followers."""
        for each in (request, *request.followers):
            reserved = self._reserved.pop(each.id, [0] * len(self._total))
            self._total = [a - b for a, b in zip(self._total, reserved, strict=True)]

    def slots_held(self) -> int:
        """Those reserved."""
        return sum(self._total) * self.cache.block_size

    def check_integrity(self, running: Sequence[Request]) -> None:
        """One per running request and follower, within the pools, and none smaller than what is held."""
        if set(self._reserved) != {each.id for request in running for each in (request, *request.followers)}:
            raise IntegrityError("reservations and running requests differ")
        totals = [sum(column) for column in zip(*self._reserved.values(), strict=True)] or [0] * len(self._total)
        if totals != self._total or not self.has_blocks(totals):
            raise IntegrityError(f"{self._total} blocks are reserved, {totals} by requests")


def _sum(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(some, others, strict=True)]


MEMORY_RULES: dict[str, type[MemoryRule]] = {"paged": OnDemand, "reserve": Reserve}
"""By the value of EngineConfig.admission."""
