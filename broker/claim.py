"""Taking requests from the queue: new ones, those whose lease ran out, and those a lost reply left with me."""

from collections.abc import Container
from dataclasses import dataclass

from broker.entry import EntryRef
from broker.link import Link
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that is mine from now on: its entry, the raw fields, and how often it was delivered, this one included."""

    ref: EntryRef
    fields: dict[bytes, bytes]
    deliveries: int


class Claimer:
    """A worker's side of the queue. Every call claims at most `count` requests: claim only what can run soon."""

    def __init__(
        self, link: Link, keys: Keys, worker: str, *, lease_ms: int, retention_ms: int, not_before_ms: int = 0
    ) -> None:
        """`not_before_ms` (server clock): no takeover before it; on a reconnect, server time + lease."""
        raise NotImplementedError

    async def new(self, count: int) -> list[Claimed]:
        """Requests that nobody was given yet, most urgent class first."""
        raise NotImplementedError

    async def expired(self, count: int) -> list[Claimed]:
        """Requests whose lease ran out or was handed over; none within one lease of a Redis start or my reconnect."""
        raise NotImplementedError

    async def unknown(self, running: Container[EntryRef]) -> list[Claimed]:
        """Requests pending under my name that are not `running`: the answer to a claim was lost.

        Register what other calls returned in `running` before awaiting anything else.
        """
        raise NotImplementedError

    async def wait_for_work(self, blocking_link: Link, timeout_ms: int, *, count: int = 4) -> list[Claimed]:
        """Block until a request arrives, on a link of its own; claims what arrived, at most `count`."""
        raise NotImplementedError
