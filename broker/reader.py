"""Reading replies: one connection and one XREAD for all of them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from broker.loss import Watch
from schemas.events import Run, Started, Terminal
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Update:
    """One step of a reply: a new epoch's started event, new tokens, or the end, with the `resume_id` behind it.

    `started` and `terminal` exclude each other; `runs` of the last tokens come with the terminal.
    """

    resume_id: str
    runs: tuple[Run, ...] = ()
    started: Started | None = None
    terminal: Terminal | None = None


class Subscription:
    """An async iterator of one reply's updates; ends behind the terminal. `close()` or `async with` gives it back.

    Iterating raises ReplyConflict (also when a resumed client was told something else), WrongTenant, UnknownRequest.
    """

    def __aiter__(self) -> AsyncIterator[Update]:
        raise NotImplementedError

    async def __anext__(self) -> Update:
        raise NotImplementedError

    def close(self) -> None:
        """Stop reading this reply."""
        raise NotImplementedError

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class ReplyReader:
    """Reads any number of reply logs over one connection, reconnects by itself, and checks for losses."""

    def __init__(self, url: str, keys: Keys, who: str, *, retention_ms: int, loss_check_s: float = 5.0) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Begin; does not wait for Redis."""
        raise NotImplementedError

    async def close(self) -> None:
        """End all subscriptions and close the connections."""
        raise NotImplementedError

    def subscribe(self, watch: Watch, *, resume_id: str | None = None) -> Subscription:
        """Follow a reply from its beginning, or from behind `resume_id` (an SSE `Last-Event-ID`).

        Raises InvalidRequest for a resume id that is none. The log is shown to `watch.tenant` only.
        """
        raise NotImplementedError
