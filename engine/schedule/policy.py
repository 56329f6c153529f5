"""Who is admitted to the batch, and who has to leave it when memory runs out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from engine.errors import IntegrityError
from engine.kv.blocks import BlockPool
from engine.request import Request, RequestState


class Policy(ABC):
    """Decides over memory; the scheduler asks it in order of arrival and stops at the first refusal.

    A policy keeps its own books through `admitted` and `released`, which the scheduler calls once each time that a
    request enters or leaves the batch.
    """

    name: str

    def __init__(self, blocks: BlockPool) -> None:
        self.blocks = blocks

    @abstractmethod
    def can_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether `request`, waiting, may join `running` now. Must be true for any request that can ever fit when
        nothing else runs, or the engine would stand still.
        """

    def admitted(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` has entered the batch."""

    def released(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` has left the batch: finished, cancelled or preempted."""

    @abstractmethod
    def victim(self, running: Sequence[Request]) -> Request:
        """Whom to preempt when a running request finds no free block; one of `running`, which is not empty."""

    def check_integrity(self, running: Sequence[Request]) -> None:  # noqa: B027  (nothing to do by default)
        """IntegrityError where the policy's books do not match what runs."""


POLICIES: dict[str, type[Policy]] = {}


def register(name: str) -> Callable[[type[Policy]], type[Policy]]:
    """Class decorator: make a policy known under `name`, the value of EngineConfig.admission."""

    def decorate(policy: type[Policy]) -> type[Policy]:
        policy.name = name
        POLICIES[name] = policy
        return policy

    return decorate


@register("reserve")
class ReservePolicy(Policy):
    """Orca's Algorithm 1 (OSDI'22, section 4.1), with blocks for slots.

    A request is admitted only if prompt + max_tokens still fit beside all reservations, and keeps that reservation
    until it ends. So a running request never lacks a block, nobody is ever preempted, and the first request that does
    not fit holds up those behind it (head of line): arrival order is kept.
    """

    def __init__(self, blocks: BlockPool) -> None:
        super().__init__(blocks)
        self._reserved: dict[str, int] = {}
        self.num_reserved = 0

    def can_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Algorithm 1, line 25: the reservation must fit."""
        return self.num_reserved + self.blocks.blocks_for(request.most_tokens) <= self.blocks.num_blocks

    def admitted(self, request: Request) -> None:
        """Reserve."""
        self._reserved[request.id] = self.blocks.blocks_for(request.most_tokens)
        self.num_reserved += self._reserved[request.id]

    def released(self, request: Request) -> None:
        """Give the reservation back."""
        self.num_reserved -= self._reserved.pop(request.id)

    def victim(self, running: Sequence[Request]) -> Request:
        """Never needed."""
        raise IntegrityError("a running request lacks a block in spite of its reservation")

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Reservations: one per running request, within the pool, and none smaller than what the request holds."""
        if set(self._reserved) != {request.id for request in running}:
            raise IntegrityError("reservations and running requests differ")
        if self.num_reserved != sum(self._reserved.values()) or self.num_reserved > self.blocks.num_blocks:
            raise IntegrityError(f"{self.num_reserved} blocks reserved of {self.blocks.num_blocks}")
        for request in running:
            if len(request.table) > self._reserved[request.id]:
                raise IntegrityError(f"request {request.id!r} holds more blocks than it reserved")


@register("paged")
class PagedPolicy(Policy):
    """First come, first served, with blocks on demand (PagedAttention, SOSP'23, section 4.5).

    A request is admitted if all its known tokens and one more find room beside what the running prefills still need:
    an admission never takes the blocks of a prefill under way. What decoding needs later is not set aside: when it
    runs out, the latest arrival is preempted and computed again.
    """

    def can_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Known tokens + 1 within what is free and not spoken for."""
        spoken_for = sum(
            self.blocks.missing(other.table, len(other.tokens))
            for other in running
            if other.state is RequestState.INITIATION
        )
        return self.blocks.blocks_for(len(request.tokens) + 1) <= self.blocks.num_free - spoken_for

    def victim(self, running: Sequence[Request]) -> Request:
        """The latest arrival."""
        return running[-1]
