"""Deadlines and lost entries: a walk over the request streams in small steps, by gateways and workers alike."""

from dataclasses import dataclass

from broker.entry import EntryRef
from broker.link import Link
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Swept:
    """What one step did: requests ended because their deadline passed, and lost entries made claimable again."""

    expired: tuple[EntryRef, ...] = ()
    repaired: int = 0


class Sweeper:
    """Walks all request streams with a cursor each; one step looks at `chunk` entries per class."""

    def __init__(
        self, link: Link, keys: Keys, who: str, *, retention_ms: int, margin_ms: int = 2000, chunk: int = 64
    ) -> None:
        """`who` stands as worker in the started events it writes; `margin_ms`: owners get this long after a deadline."""
        raise NotImplementedError

    async def step(self) -> Swept:
        """Look at the next chunk of every class. Call it every second or so."""
        raise NotImplementedError
