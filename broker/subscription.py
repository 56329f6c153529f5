"""One client's view of a reply: its position in the log, and its permission to see it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from orcastream.broker.errors import BrokerError, WrongTenant
from orcastream.broker.fold import Fold
from orcastream.broker.resume import resume_id
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import EventId, PromptRun, Run, Started, Terminal


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
    """When this process read it, in seconds of the event loop's clock; unknown if it stands for several."""

    @property
    def resume_id(self) -> str:
        """The id that a client with this update sends back to resume after it."""
        return resume_id(self.counts, self.checksums)


@dataclass(slots=True, eq=False)
class ReplyState:
    """What this process has read of one reply log, shared by all subscriptions to it.

    Updates that every subscriber has seen are dropped, and with them most of the memory per token: later subscribers
    get a summary from the fold. Only updates with log probabilities, which the fold does not keep, stay.
    """

    request_id: str
    fold: Fold = field(default_factory=Fold)
    updates: list[Update] = field(default_factory=list)
    num_dropped: int = 0
    """Updates before `updates`."""
    _begun: Update | None = None
    """The newest started event among the dropped updates."""
    _last: Update | None = None
    """The newest dropped update."""
    failure: BrokerError | None = None
    subscriptions: set["Subscription"] = field(default_factory=set)
    damaged_epoch: int = -1
    """The newest epoch with a hole that reading again did not fill."""
    reread_until: EventId | None = None
    """While the log is read again from its start: the entry at which a token was missing."""

    @property
    def finished(self) -> bool:
        """Whether nothing more can arrive."""
        return self.failure is not None or self.fold.terminal is not None

    @property
    def is_over(self) -> bool:
        """Whether a new subscriber must read the log from its start: a lost request may have been computed again."""
        terminal = self.fold.terminal
        return self.failure is not None or (terminal is not None and terminal.error is ErrorCode.LOST)

    def publish(self, update: Update) -> None:
        """Show an update to all subscribers."""
        self.updates.append(update)
        self.notify()

    def seen(self, count: int) -> None:
        """Record that the only subscriber has seen the first `count` updates."""
        num_seen = count - self.num_dropped
        if len(self.subscriptions) != 1 or num_seen <= 0 or any(map(_has_logprobs, islice(self.updates, num_seen))):
            return
        dropped = self.updates[:num_seen]
        for update in dropped:
            if update.started is not None:
                self._begun = update
        self._last = dropped[-1]
        self.num_dropped += len(dropped)
        del self.updates[: len(dropped)]

    def summary(self) -> list[Update]:
        """Return the dropped updates as if all had arrived at once in the newest epoch."""
        if self._begun is None or self._last is None:
            return []
        counts, checksums, epoch, *_, terminal, _, _ = self._last
        none = (0,) * len(counts)
        begun = self._begun._replace(counts=none, checksums=none)
        runs = tuple([Run(choice, 0, tuple(self.fold.tokens[choice][:n])) for choice, n in enumerate(counts) if n])
        return [begun, Update(counts, checksums, epoch, runs, None, terminal)] if runs or terminal else [begun]

    def fail(self, failure: BrokerError) -> None:
        """End all iterations with `failure`, after the existing updates."""
        self.failure = self.failure or failure
        self.notify()

    def notify(self) -> None:
        """Wake up all subscribers."""
        for subscription in self.subscriptions:
            subscription.wake()


class Subscription:
    """An async iterator of one reply's updates; ends after the terminal. End it with `close()` or `async with`.

    Holds only its position in the shared state: a slow subscriber delays nobody. Iterating raises ReplyConflict,
    WrongTenant, UnknownRequest.
    """

    def __init__(self, state: ReplyState, tenant: str, on_close: Callable[["Subscription"], None]) -> None:
        self._state = state
        self._tenant = tenant
        self._on_close = on_close
        self._before = state.summary()
        self._next = state.num_dropped
        self._admitted = False
        self._closed = False
        self._waiter: asyncio.Future[bool] | None = None
        self._loop = asyncio.get_running_loop()  # asking again for each wait costs a system call

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
        while not self._closed:
            start = self._next - state.num_dropped
            coming = self._before[:most] or state.updates[start : start + most]
            if coming:
                return self._shown(coming)
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
            if self._before:
                self._before = self._before[1:]
            else:
                self._next += 1
            taken.append(update)
        self._state.seen(self._next)
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
            self._on_close(self)

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _admit(self, update: Update) -> None:
        if update.started is not None:
            self._admitted = update.started.tenant == self._tenant
        if not self._admitted:
            raise WrongTenant(f"{self._state.request_id}: the log belongs to another tenant")


def _has_logprobs(update: Update) -> bool:
    return update.prompt is not None or bool([run for run in update.runs if run.logprobs is not None])
