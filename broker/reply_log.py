"""The writing end of one reply log: one epoch, one link, one write in flight."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from broker.errors import BrokerError, Fenced, LinkLost, LogBusy, Unwritable
from broker.link import Link
from schemas.codec import Form
from schemas.events import Event, Output, Run, Terminal, encode_event

REFUSED = "equal or smaller"
"""What Redis says of an entry id at or below the newest; the one error that means fenced."""


class ReplyLog:
    """Appends the events of one epoch. Made by `attach`, which wrote the event 0.

    Bound to the link it was attached over. After any write that failed, or whose outcome is unknown, the log is dead:
    nothing is ever written twice; attach again.
    """

    def __init__(self, link: Link, key: str, epoch: int, form: Form) -> None:
        self.link = link
        self.key = key
        self.epoch = epoch
        self.form = form
        self._next_index = 1
        self._writing = False
        self._failure: BrokerError | None = None
        raw = key.encode()
        self._head = b"*8\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$10\r\nNOMKSTREAM\r\n" % (len(raw), raw)

    @property
    def writable(self) -> bool:
        """Whether another event can be appended now."""
        return self._refusal() is None and not self._writing

    async def append(self, runs: Sequence[Run]) -> None:
        """Append tokens. Raises Fenced, LinkLost or Unwritable; the log is dead after each of them."""
        await self._write(Output(tuple(runs)))

    async def end(self, terminal: Terminal) -> None:
        """Append the terminal event; then `ending.finish` is due. Raises as `append` does, and then nobody acks."""
        await self._write(terminal)

    async def _write(self, event: Event) -> None:
        failure = (await append_many([(self, event)]))[0]
        if failure is not None:
            raise failure

    def _refusal(self) -> BrokerError | None:
        if self._failure is None and not self.link.alive:
            self._failure = LinkLost(self.link.lost_reason)
        return self._failure

    def _begin(self, event: Event) -> bytes:
        """The packed command of the next event; the log is busy until `_settle`."""
        if self._writing:
            raise LogBusy(f"{self.key}: a write is in flight")
        kind, payload = event.type.encode(), encode_event(event, self.form)[3]
        entry_id = b"%d-%d" % (self.epoch, self._next_index)
        self._next_index += 1
        self._writing = True
        return b"%b$%d\r\n%b\r\n$4\r\ntype\r\n$%d\r\n%b\r\n$7\r\npayload\r\n$%d\r\n%b\r\n" % (
            self._head,
            len(entry_id),
            entry_id,
            len(kind),
            kind,
            len(payload),
            payload,
        )

    def _abandon(self) -> None:
        """Nobody waits for the reply to a write that may be in flight."""
        if self._writing:
            self._writing, self._failure = False, LinkLost("cancelled while a write was in flight")

    def _settle(self, event: Event, reply: Any) -> BrokerError | None:
        """Take the reply to a write; the error that it means, if any."""
        self._writing = False
        if type(reply) is bytes:
            if isinstance(event, Terminal):
                self._failure = LogBusy(f"{self.key}: the log has ended")
            return None
        if isinstance(reply, BrokerError):
            self._failure = reply
        elif isinstance(reply, ResponseError) and REFUSED not in str(reply):
            self._failure = Unwritable(reply)
        else:
            self._failure = Fenced(f"{self.key}: epoch {self.epoch} was refused ({reply or 'the log is gone'})")
        return self._failure


async def append_many(items: Sequence[tuple[ReplyLog, Event]]) -> list[BrokerError | None]:
    """Append one event to each of several logs in one write per link.

    Per item None once it stands in the log, or the error (Fenced, LinkLost, Unwritable, LogBusy), not raised.
    """
    results: list[BrokerError | None] = [None] * len(items)
    by_link: dict[Link, list[int]] = {}
    packed: dict[Link, list[bytes]] = {}
    for index, (log, event) in enumerate(items):
        refusal = log._refusal()
        if refusal is None:
            try:
                command = log._begin(event)
            except LogBusy as busy:
                refusal = busy
        if refusal is not None:
            results[index] = refusal
            continue
        by_link.setdefault(log.link, []).append(index)
        packed.setdefault(log.link, []).append(command)
    writes = [(indices, _send(link, packed[link])) for link, indices in by_link.items()]
    try:
        for indices, write in writes:
            for index, reply in zip(indices, await _replies(write), strict=True):
                log, event = items[index]
                results[index] = log._settle(event, reply)
    except BaseException:
        # The caller was cancelled: whether these events stand in their logs is unknown for ever.
        for index in (index for indices, _ in writes for index in indices):
            items[index][0]._abandon()
        raise
    return results


Write = tuple["asyncio.Future[list[Any]] | LinkLost", int]


def _send(link: Link, packed: Sequence[bytes]) -> Write:
    try:
        return link.send(b"".join(packed), len(packed)), len(packed)
    except LinkLost as lost:
        return lost, len(packed)


async def _replies(write: Write) -> Sequence[Any]:
    future, count = write
    try:
        return [future] * count if isinstance(future, LinkLost) else await future
    except LinkLost as lost:
        return [lost] * count
