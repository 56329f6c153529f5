"""Requests that Redis lost: the queue entry is gone and, read after that, no terminal stands in the log."""

from dataclasses import dataclass
from enum import StrEnum

from broker.entry import EntryRef
from broker.link import Link
from schemas.keys import Keys
from schemas.request import GenerationRequest


class Verdict(StrEnum):
    """What a loss check found or did."""

    PRESENT = "present"
    """The queue entry exists: somebody will work on it."""
    ENDED = "ended"
    """A terminal stands in the log."""
    REQUEUED = "requeued"
    """It was lost, and this process, which accepted it, put it into the queue again."""
    SUSPECT = "suspect"
    """It looks lost; who accepted it gets until the next check to put it into the queue again."""
    LOST = "lost"
    """It was ended with the error `lost`."""
    UNKNOWN = "unknown"
    """Nothing in Redis knows the id."""


@dataclass(slots=True)
class Watch:
    """A request that this process waits for. `request` only where this process accepted it: then it can be re-queued."""

    request_id: str
    tenant: str
    ref: EntryRef | None = None
    request: GenerationRequest | None = None
    suspect: bool = False


class LossCheck:
    """Checks watched requests; `who` stands as worker in the started events it writes."""

    def __init__(self, keys: Keys, who: str, *, retention_ms: int) -> None:
        self._keys = keys
        self._who = who
        self._retention_ms = retention_ms

    async def check(self, link: Link, watch: Watch) -> Verdict:
        """Find out what became of the request and put it right. Raises LinkLost, ResponseError, Unwritable."""
        raise NotImplementedError
