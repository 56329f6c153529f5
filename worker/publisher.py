"""Writes reply logs: one write per log in flight, all logs of an iteration in one write to the socket."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orcastream.broker.errors import BrokerError, Fenced, Unwritable
from orcastream.broker.reply_log import ReplyLog, append_many
from orcastream.broker.token_write import TokenWrite
from orcastream.schemas.events import Event, PromptRun, Terminal
from orcastream.telemetry.names import Outcome
from orcastream.worker.choice import Choice
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.running import Running
from orcastream.worker.session import Session

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

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._dirty: dict[Running, None] = {}
        self.busy_s = 0.0
        """Time spent on writing so far, waits for Redis included."""
        self.wake = asyncio.Event()

    def mark(self, runnings: Iterable[Running]) -> None:
        """These may have an event to write."""
        self._dirty.update(runnings if isinstance(runnings, dict) else dict.fromkeys(runnings))
        self.wake.set()

    async def flush(self, session: Session) -> Flushed:
        """Write the next event of every marked request; clean up behind the terminal ones.

        LinkLost is raised where the outcome is unknown; nothing is repeated, the next session attaches to every log.
        """
        self.wake.clear()
        dirty, self._dirty = self._dirty, {}
        flushed, write = Flushed(), TokenWrite()
        steady: list[tuple[Running, ReplyLog, Choice, int]] = []
        others: list[tuple[Running, ReplyLog, Event]] = []
        for running in dirty:
            reply_log, choice = running.log, running.steady
            if reply_log is None or running.closed:
                continue
            if choice is not None and choice.ending is None and running.error is None:
                tokens = choice.tokens
                if choice.num_logged == len(tokens):
                    continue
                if write.add(reply_log, tokens, choice.num_logged):
                    steady.append((running, reply_log, choice, len(tokens)))
                    continue
            if (event := running.next_event()) is not None:
                others.append((running, reply_log, event))
        if steady or others:
            begin_s = time.monotonic()
            await self._write(session, write, steady, others, flushed)
            if flushed.ended:
                await asyncio.gather(*(session.finish(one, terminal) for one, terminal in flushed.ended))
            self.busy_s += time.monotonic() - begin_s
        return flushed

    async def _write(
        self,
        session: Session,
        write: TokenWrite,
        steady: Sequence[tuple[Running, ReplyLog, Choice, int]],
        others: Sequence[tuple[Running, ReplyLog, Event]],
        flushed: Flushed,
    ) -> None:
        """Send `write`, which has tokens of all `steady`, and the events of the others, and see what became of them."""
        write.send()
        try:
            outcomes = await append_many([(reply_log, event) for _, reply_log, event in others]) if others else []
        except BaseException:
            write.abandon()
            raise
        failures = await write.failures()
        for running, reply_log, choice, end in steady:
            if failures and (failure := failures.get(reply_log)) is not None:
                self._refused(flushed, running, failure)
            else:
                choice.num_logged = end
        for (running, _, event), outcome in zip(others, outcomes, strict=True):
            if outcome is not None:
                self._refused(flushed, running, outcome)
                continue
            running.back_off.succeeded()
            if type(event) is PromptRun:
                self.mark([running])  # the next piece, or what has come behind it
            if running.logged(event):
                self._lifecycle.first_token(running)
            if running.counted and running.progressed:
                running.counted = False
                session.leases.forgive(running.ref)
            if type(event) is Terminal:
                self._lifecycle.ended(running, event)
                flushed.ended.append((running, event))

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
