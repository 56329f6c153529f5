"""Writes reply logs: one write per log in flight, all logs of an iteration in one write to the socket."""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.ending import finish
from broker.errors import BrokerError, Fenced, Unwritable
from broker.reply_log import ReplyLog, append_many
from schemas.events import Event, Terminal
from telemetry.names import Outcome
from worker.lifecycle import Lifecycle
from worker.running import Running
from worker.session import Session

log = logging.getLogger("orcastream.worker")


@dataclass(slots=True)
class Flushed:
    """What became of the writes that are not simply done."""

    ended: list[tuple[Running, Terminal]] = field(default_factory=list)
    """Terminal event written, queue entry gone."""
    fenced: list[Running] = field(default_factory=list)
    """A newer epoch stands in the log, or the log is gone: attach to see whose the request is."""
    unwritable: list[Running] = field(default_factory=list)
    """The server cannot write now: attach again a little later."""


class Publisher:
    """Keeps the set of requests that may have something to say, and writes it when `flush` is called."""

    def __init__(self, retention_ms: int, lifecycle: Lifecycle) -> None:
        self._retention_ms = retention_ms
        self._lifecycle = lifecycle
        self._dirty: dict[Running, None] = {}
        self.busy_s = 0.0
        """Time spent on writing so far, waits for Redis included."""
        self.wake = asyncio.Event()

    def mark(self, runnings: Iterable[Running]) -> None:
        """These may have an event to write."""
        self._dirty.update(dict.fromkeys(runnings))
        self.wake.set()

    async def flush(self, session: Session) -> Flushed:
        """Write the next event of every marked request; clean up behind the terminal ones.

        LinkLost is raised where the outcome is unknown; nothing is repeated, the next session attaches to every log.
        """
        self.wake.clear()
        dirty, self._dirty = list(self._dirty), {}
        writes: list[tuple[Running, ReplyLog, Event]] = []
        for running in dirty:
            if running.log is not None and not running.closed and (event := running.next_event()) is not None:
                writes.append((running, running.log, event))
        flushed = Flushed()
        if not writes:
            return flushed
        begin_s = time.monotonic()
        outcomes = await append_many([(reply_log, event) for _, reply_log, event in writes])
        for (running, _, event), outcome in zip(writes, outcomes, strict=True):
            if outcome is not None:
                self._refused(flushed, running, outcome)
                continue
            if running.logged(event):
                self._lifecycle.first_token(running)
            if type(event) is Terminal:
                self._lifecycle.ended(running, event)
                flushed.ended.append((running, event))
        if flushed.ended:
            await asyncio.gather(*(self._clean_up(session, running, terminal) for running, terminal in flushed.ended))
        self.busy_s += time.monotonic() - begin_s
        return flushed

    def _refused(self, flushed: Flushed, running: Running, outcome: BrokerError) -> None:
        running.log = None
        log.info("write refused", extra=running.log_fields(why=str(outcome)))
        if isinstance(outcome, Fenced):
            self._lifecycle.fenced(running)
            flushed.fenced.append(running)
        elif isinstance(outcome, Unwritable):
            self._lifecycle.epoch_over(running, Outcome.UNWRITABLE)
            flushed.unwritable.append(running)
        else:
            raise outcome

    async def _clean_up(self, session: Session, running: Running, terminal: Terminal) -> None:
        await finish(
            session.link,
            session.keys,
            request_id=running.id,
            ref=running.ref,
            terminal=terminal,
            retention_ms=self._retention_ms,
        )
