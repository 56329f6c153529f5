"""Leases: the right to a claimed request, renewed while the engine makes progress."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker.entry import EntryRef
from broker.link import Link
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Held:
    """A request whose lease is to be renewed; its reply log lives until `log_expire_at_ms` (deadline + retention)."""

    ref: EntryRef
    request_id: str
    log_expire_at_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Whether the entry is still mine, and whether the request was cancelled."""

    owned: bool
    cancelled: bool


class Leases:
    """Renews and hands over the leases of one worker; touches nothing that has become somebody else's."""

    def __init__(self, link: Link, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker

    async def renew(self, held: Sequence[Held]) -> dict[EntryRef, Lease]:
        """Renew leases and the lifetimes of the reply logs; says per entry whether it is still mine, and its cancel flag."""
        raise NotImplementedError

    async def hand_over(self, refs: Iterable[EntryRef]) -> list[EntryRef]:
        """Let the leases expire at once; the deliveries do not count. Returns those that were still mine."""
        raise NotImplementedError
