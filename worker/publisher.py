"""Writes reply logs: one write in flight per log, all logs of an iteration in one write to the socket."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orcastream.broker.errors import BrokerError, Fenced, Unwritable
from orcastream.broker.reply_log import ReplyLog, append_many
from orcastream.broker.token_stream import TokenStream
from orcastream.broker.token_writer import TokenWriter
from orcastream.schemas.events import Event, PromptRun, Terminal
from orcastream.telemetry.names import Outcome
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.running import Running
from orcastream.worker.session import Session

log = logging.getLogger("orcastream.worker")


@dataclass(slots=True)
class Flushed:
    """The results of writes that need further action."""

    ended: list[tuple[Running, Terminal]] = field(default_factory=list)
    """Terminal event written, queue entry gone."""
    fenced: list[Running] = field(default_factory=list)
    """The log has a newer epoch, or is gone: attach to see whose the request is."""
    unwritable: list[Running] = field(default_factory=list)
    """The server cannot write now: attach again a little later."""


class Publisher:
    """Keeps the set of requests that may have an event to write, and writes it when `flush` is called.

    Once a request has nothing to write but its next tokens, a stream of `tokens` publishes them.
    """

    def __init__(self, lifecycle: Lifecycle, published: Callable[[int], None]) -> None:
        """`published` is called with the number of stream tokens that have been processed."""
        self._lifecycle = lifecycle
        self._dirty: dict[Running, None] = {}
        self._refusals: list[tuple[TokenStream, BrokerError]] = []
        """Refusals since the last flush."""
        self.tokens = TokenWriter(published, self._settled)
        self.wake = asyncio.Event()

    @property
    def busy_s(self) -> float:
        """Time spent writing so far, including waits for Redis."""
        return self.tokens.clock.busy_s

    def mark(self, runnings: Iterable[Running]) -> None:
        """Mark requests that may have an event to write."""
        self._dirty.update(runnings if isinstance(runnings, dict) else dict.fromkeys(runnings))
        self.wake.set()

    async def flush(self, session: Session) -> Flushed:
        """Write the next event of every marked request; clean up after the terminal ones.

        Raises LinkLost if the outcome is unknown; nothing is repeated, and the next session attaches to every log.
        """
        self.wake.clear()
        dirty, self._dirty = self._dirty, {}
        flushed = Flushed()
        self._take_refusals(flushed)
        due: list[tuple[Running, ReplyLog, Event]] = []
        for running in dirty:
            if running.log is not None and not running.log.busy and not running.closed:
                event = running.next_event()
                if event is not None:
                    due.append((running, running.log, event))
        self.tokens.send()
        if due:
            self.tokens.clock.begin()
            try:
                await self._write(session, due, flushed)
                await self._clean_up(session, flushed)
            finally:
                self.tokens.clock.end()
        return flushed

    async def finish(self, session: Session) -> list[Running]:
        """Write all pending events; return the requests that have ended. Raises as `flush` does."""
        ended = []
        while True:
            ended += [running for running, _ in (await self.flush(session)).ended]
            await self.tokens.settled()
            if not (self._dirty or self._refusals):
                return ended

    async def _write(self, session: Session, due: Sequence[tuple[Running, ReplyLog, Event]], flushed: Flushed) -> None:
        """Send the events, and process the results."""
        outcomes = await append_many([(reply_log, event) for _, reply_log, event in due])
        for (running, reply_log, event), outcome in zip(due, outcomes, strict=True):
            if outcome is not None:
                self._refused(flushed, running, outcome)
                continue
            running.back_off.succeeded()
            if type(event) is PromptRun:
                self.mark([running])  # the next piece, or output that followed it
            if running.logged(event):
                self._lifecycle.first_token(running)
            if running.blamed and running.progressed:
                running.blamed = running.counted = False
                session.leases.forgive(running.ref)
            if type(event) is Terminal:
                self._lifecycle.ended(running, event)
                flushed.ended.append((running, event))
            elif running.log is reply_log and running.can_stream and not running.closed:
                running.open_stream(self.tokens)
        self.tokens.send()

    async def _clean_up(self, session: Session, flushed: Flushed) -> None:
        """Clean up after the terminal events. Where Redis refuses that, the next attach finds the event and does it: a
        refusal by one node of a cluster must not end the epochs on all of them.
        """
        ended, flushed.ended = flushed.ended, []
        cleanups = [session.finish(running, terminal) for running, terminal in ended]
        outcomes = await asyncio.gather(*cleanups, return_exceptions=True)
        for one, outcome in zip(ended, outcomes, strict=True):
            if outcome is None:
                flushed.ended.append(one)
            elif isinstance(outcome, Unwritable):
                one[0].detach()
                flushed.unwritable.append(one[0])
                log.info("cleanup refused", extra=one[0].log_fields(why=str(outcome)))
            else:
                raise outcome

    def _settled(self, stream: TokenStream, failure: BrokerError | None) -> None:
        """See TokenWriter."""
        running: Running = stream.owner
        if running.log is not stream.log:  # it was attached again, or belongs to another worker
            return
        running.close_stream()
        running.choices[0].num_logged = stream.num_logged
        if failure is None:
            self.mark([running])
        else:
            self._refusals.append((stream, failure))
            self.wake.set()

    def _take_refusals(self, flushed: Flushed) -> None:
        refusals, self._refusals = self._refusals, []
        for stream, failure in refusals:
            running: Running = stream.owner
            if running.log is stream.log and not running.closed:
                self._refused(flushed, running, failure)

    def _refused(self, flushed: Flushed, running: Running, outcome: BrokerError) -> None:
        running.detach()
        log.info("write refused", extra=running.log_fields(why=str(outcome)))
        if isinstance(outcome, Fenced):
            self._lifecycle.fenced(running)
            flushed.fenced.append(running)
        elif isinstance(outcome, Unwritable):
            self._lifecycle.epoch_over(running, Outcome.UNWRITABLE)
            flushed.unwritable.append(running)
        else:
            raise outcome
