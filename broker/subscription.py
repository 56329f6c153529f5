"""One client's view of a reply: where it stands in the log, and what it may see."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.errors import BrokerError, ReplyConflict, WrongTenant
from broker.fold import Fold
from broker.resume import ResumePoint, extend_checksum, resume_id
from schemas.events import EventId, Run, Started, Terminal


class Update(NamedTuple):
    """One step of a reply: a new epoch's started event, new tokens, or the end.

    `started` comes alone; the last `runs` come with the `terminal`. `epoch` is that of the event, `counts` and
    `checksums` are those of each choice's tokens up to it.
    """

    counts: tuple[int, ...]
    checksums: tuple[int, ...]
    epoch: int
    runs: tuple[Run, ...] = ()
    started: Started | None = None
    terminal: Terminal | None = None

    @property
    def resume_id(self) -> str:
        """What a client that has it sends back to go on behind it."""
        return resume_id(self.counts, self.checksums)


@dataclass(slots=True, eq=False)
class ReplyState:
    """What this process has read of one reply log, shared by all who follow it. Bounded by the log itself."""

    request_id: str
    fold: Fold = field(default_factory=Fold)
    updates: list[Update] = field(default_factory=list)
    failure: BrokerError | None = None
    subscriptions: set["Subscription"] = field(default_factory=set)
    damaged_epoch: int = -1
    """The newest epoch that was found to have a hole which reading again did not fill."""
    reread_until: EventId | None = None
    """While the log is read again from its start: the entry at which a token was missing."""

    @property
    def finished(self) -> bool:
        """Whether nothing more can come."""
        return self.failure is not None or self.fold.terminal is not None

    def publish(self, update: Update) -> None:
        """Show an update to everyone who follows."""
        self.updates.append(update)
        self.notify()

    def fail(self, failure: BrokerError) -> None:
        """End everyone's iteration with `failure`, behind the updates that are there."""
        self.failure = self.failure or failure
        self.notify()

    def notify(self) -> None:
        """Wake up everyone who follows."""
        for subscription in self.subscriptions:
            subscription.wake()


class Subscription:
    """An async iterator of one reply's updates; ends behind the terminal. `close()` or `async with` gives it back.

    Holds only its position in the shared state: a slow subscriber delays nobody. Iterating raises ReplyConflict (also
    when a resumed client was told something else), WrongTenant, UnknownRequest.
    """

    def __init__(
        self, state: ReplyState, tenant: str, resume: ResumePoint | None, on_close: Callable[["Subscription"], None]
    ) -> None:
        self._state = state
        self._tenant = tenant
        self._resume = resume
        self._skipper: _Skipper | None = None
        self._on_close = on_close
        self._next = 0
        self._admitted = False
        self._closed = False
        self._waiter: asyncio.Future[bool] | None = None

    @property
    def request_id(self) -> str:
        """The request that is followed."""
        return self._state.request_id

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Update:
        while (update := await self.next_within(None)) is None:
            pass
        return update

    async def next_within(self, seconds: float | None) -> Update | None:
        """The next update; None where none came within `seconds`. Raises as the iteration does."""
        updates = self._state.updates
        while not self._closed:
            if self._next < len(updates) and self._ready():
                update = updates[self._next]
                self._next += 1
                shown = self._show(update)
                if shown is not None:
                    return shown
            elif self._next >= len(updates) and self._state.finished:
                break
            elif not await self._woken(seconds):
                return None
        if self._state.failure is not None and not self._closed:
            raise self._state.failure
        raise StopAsyncIteration

    async def _woken(self, seconds: float | None) -> bool:
        """Wait for something new; False where nothing came within `seconds`. One task waits at a time."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _settle, waiter, False)
        try:
            await waiter
            return waiter.result() is True
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Something new stands in the state."""
        if self._waiter is not None:
            _settle(self._waiter, True)

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

    def _ready(self) -> bool:
        """A resumed client sees nothing before the log has come as far as the client, and said the same."""
        if self._resume is None or self._skipper is not None:
            return True
        fold, updates = self._state.fold, self._state.updates
        self._admit(updates[0])
        if not fold.reaches(self._resume):
            if self._state.finished:
                raise ReplyConflict(f"the log ended before {self._resume}, which was delivered")
            return False
        if not fold.matches(self._resume):
            raise ReplyConflict(f"the log says something else than what was delivered up to {self._resume}")
        self._skipper = _Skipper(self._resume, fold)
        return True

    def _show(self, update: Update) -> Update | None:
        self._admit(update)
        return update if self._skipper is None else self._skipper.cut(update)

    def _admit(self, update: Update) -> None:
        if update.started is not None:
            self._admitted = update.started.tenant == self._tenant
        if not self._admitted:
            raise WrongTenant(f"{self._state.request_id}: the log belongs to another tenant")


def _settle(waiter: "asyncio.Future[bool]", value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)


class _Skipper:
    """Cuts what a resumed client has already been given, and counts on from there."""

    def __init__(self, point: ResumePoint, fold: Fold) -> None:
        self._counts = [0] * max(len(fold.tokens), len(point.counts))
        self._checksums = [0] * len(self._counts)
        for index, count in enumerate(point.counts):
            tokens = fold.tokens[index][:count] if index < len(fold.tokens) else ()
            self._counts[index], self._checksums[index] = count, extend_checksum(0, tokens)

    def cut(self, update: Update) -> Update | None:
        runs = tuple(run for run in (self._fresh(run) for run in update.runs) if run is not None)
        if not runs and update.started is None and update.terminal is None:
            return None
        counts, checksums = tuple(self._counts), tuple(self._checksums)
        return Update(counts, checksums, update.epoch, runs, update.started, update.terminal)

    def _fresh(self, run: Run) -> Run | None:
        while len(self._counts) <= run.choice:
            self._counts.append(0)
            self._checksums.append(0)
        skip = self._counts[run.choice] - run.position
        if skip >= len(run.tokens):
            return None
        tokens = run.tokens[skip:]
        logprobs = None if run.logprobs is None else run.logprobs[skip:]
        self._counts[run.choice] += len(tokens)
        self._checksums[run.choice] = extend_checksum(self._checksums[run.choice], tokens)
        return Run(run.choice, run.position + skip, tokens, logprobs)
