"""Cancelling: a key that is the truth, and a stream that wakes workers up to look at it."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.link import Link
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Control:
    """A wake-up for workers. `kind`: `cancel` (look at `target`, a request id) or `drain` (`target` is a worker)."""

    kind: str
    target: str


async def cancel(link: Link, keys: Keys, request_id: str, *, expire_at_ms: int | None = None) -> None:
    """Cancel a request, durably: the key first, then the wake-up.

    The key lives until `expire_at_ms` (Unix ms, not before the request's deadline); None: as long as the request is
    remembered. A request that waits is then to be ended by whoever calls this: `ending.end_if_waiting`.
    """
    raise NotImplementedError


async def cancelled(link: Link, keys: Keys, request_ids: Sequence[str]) -> set[str]:
    """Which of these requests were cancelled. A worker asks after it has registered a request locally."""
    raise NotImplementedError


async def drain(link: Link, keys: Keys, worker: str) -> None:
    """Ask one worker to stop claiming, finish or hand over, and exit."""
    raise NotImplementedError


class ControlReader:
    """Reads the control stream from now on, over a link of its own."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def read(self, timeout_ms: int) -> list[Control]:
        """The next wake-ups; empty after `timeout_ms`. Raises LinkLost: the cancel keys hold what was missed."""
        raise NotImplementedError
