"""One client's view of a reply: its position in the log, and its permission to see it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from orcastream.broker.errors import BrokerError, WrongTenant
from orcastream.broker.fold import Fold
from orcastream.broker.resume import resume_id
from orcastream.schemas.events import EventId, PromptRun, Run, Started, Terminal

MAX_UNREAD_BYTES: Final = 64 * 1024
"""How much is read ahead of a subscriber, in bytes of log entries, whose updates take about nine times as much memory.

About 1,100 events of one token, or 190 with 20 log probabilities.
"""


class Update(NamedTuple):
    """One step of a reply: a new epoch's started event, prompt log probabilities, new tokens, or the end.

    `started` comes alone; the last `runs` come with the `terminal`. `epoch` is that of the event; `counts` and
    `checksums` cover each choice's tokens up to it.
    """

    counts: tuple[int, ...]
    checksums: tuple[int, ...]
    epoch: int
    runs: tuple[Run, ...] = ()
    started: Started | None = None
    terminal: Terminal | None = None
    prompt: PromptRun | None = None
    """More of the prompt's log probabilities, which come alone."""
    arrived_s: float = float("-inf")
    """When this process read it, in seconds of the event loop's clock; unknown if it could have been read earlier."""

    @property
    def resume_id(self) -> str:
        """The id that a client with this update sends back to resume after it."""
        return resume_id(self.counts, self.checksums)


@dataclass(slots=True, eq=False)
class ReplyState:
    """What was read of one reply log for one subscription, and the updates that its subscriber has yet to take.

    Once those are MAX_UNREAD_BYTES, no more is read until the subscriber has taken all of it: the log itself has the
    rest.
    """

    request_id: str
    fold: Fold = field(default_factory=Fold)
    unread: list[Update] = field(default_factory=list)
    """Updates of which the subscriber has not asked for the next one yet."""
    unread_bytes: int = 0
    """Those of the log entries of all updates since `unread` was last empty."""
    failure: BrokerError | None = None
    subscription: "Subscription | None" = None
    damaged_epoch: int = -1
    """The newest epoch with a hole that reading again did not fill."""
    reread_until: EventId | None = None
    """While the log is read again from its start: the entry at which a token was missing."""

    @property
    def finished(self) -> bool:
        """Whether nothing more can arrive."""
        return self.failure is not None or self.fold.terminal is not None

    @property
    def is_full(self) -> bool:
        """Whether nothing more is read for now."""
        return self.unread_bytes >= MAX_UNREAD_BYTES

    def publish(self, update: Update, encoded_bytes: int) -> None:
        """Show an update, whose log entry has `encoded_bytes`, to the subscriber."""
        self.unread.append(update)
        self.unread_bytes += encoded_bytes
        self.notify()

    def drop(self, count: int) -> bool:
        """Forget the first `count` updates; return whether reading has to go on because of it."""
        del self.unread[:count]
        if self.unread:
            return False
        was_full, self.unread_bytes = self.is_full, 0
        return was_full and not self.finished

    def fail(self, failure: BrokerError) -> None:
        """End the iteration with `failure`, after the existing updates."""
        self.failure = self.failure or failure
        self.notify()

    def notify(self) -> None:
        """Wake up the subscriber."""
        if self.subscription is not None:
            self.subscription.wake()


class Subscription:
    """An async iterator of one reply's updates; ends after the terminal. End it with `close()` or `async with`.

    Each has its own state, so a slow subscriber delays nobody. Iterating raises ReplyConflict, WrongTenant,
    UnknownRequest.
    """

    def __init__(
        self,
        state: ReplyState,
        tenant: str,
        *,
        on_close: Callable[[], None],
        on_room: Callable[[], None],
        lags: Callable[[], Awaitable[bool]],
    ) -> None:
        """`on_room` is called when the state is no longer full; `lags`: see there."""
        self._state = state
        self._tenant = tenant
        self._on_close = on_close
        self._on_room = on_room
        self.lags = lags
        """Returns whether the log has entries that were not read yet; False while Redis is away."""
        self._num_taken = 0
        """Updates that were returned; they are dropped when the next ones are asked for."""
        self._admitted = False
        self._closed = False
        self._waiter: asyncio.Future[bool] | None = None
        self._loop = asyncio.get_running_loop()  # asking again for each wait costs a system call
        state.subscription = self

    @property
    def request_id(self) -> str:
        """The id of the followed request."""
        return self._state.request_id

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Update:
        while not (updates := await self.take(1)):
            pass
        return updates[0]

    async def take(self, most: int) -> list[Update]:
        """Return the next updates, at most `most`, waiting for the first; an empty list if `nudge` ended the wait.

        Raises as the iteration does, after the updates before the error. Only one task may wait at a time.
        """
        state = self._state
        num_taken, self._num_taken = self._num_taken, 0
        if num_taken and state.drop(num_taken):
            self._on_room()
        while not self._closed:
            if state.unread:
                return self._shown(state.unread[:most])
            if state.finished:
                break
            self._waiter = self._loop.create_future()
            try:
                if not await self._waiter:
                    return []
            finally:
                self._waiter = None
        if state.failure is not None and not self._closed:
            raise state.failure
        raise StopAsyncIteration

    def _shown(self, coming: Sequence[Update]) -> list[Update]:
        taken: list[Update] = []
        for update in coming:
            try:
                self._admit(update)
            except BrokerError:
                if taken:
                    break
                raise
            taken.append(update)
        self._num_taken = len(taken)
        return taken

    def wake(self) -> None:
        """Wake up for a new update in the state."""
        self._settle(True)

    def nudge(self) -> None:
        """End a wait without an update."""
        self._settle(False)

    def _settle(self, is_news: bool) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(is_news)

    def close(self) -> None:
        """Stop following; a waiting iteration ends. Idempotent."""
        if not self._closed:
            self._closed = True
            self.wake()
            self._on_close()

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _admit(self, update: Update) -> None:
        if update.started is not None:
            self._admitted = update.started.tenant == self._tenant
        if not self._admitted:
            raise WrongTenant(f"{self._state.request_id}: the log belongs to another tenant")
