"""The writing end of one reply log: one epoch, one link, one write in flight."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError, Fenced, LinkLost, LogBusy, Unwritable
from orcastream.broker.link import Link
from orcastream.broker.resp import pack, pack_parts
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Event, Output, Run, Terminal, encode_payload

REFUSED = "equal or smaller"
"""In Redis's error for an entry id at or below the newest; the only error that means fenced."""
_ASKING = pack(("ASKING",))


class ReplyLog:
    """Appends the events of one epoch. Created by `attach`, which wrote event 0.

    Bound to the link of its attach. After a write that failed, or whose outcome is unknown, the log is dead: nothing
    is ever written twice; attach again. `is_moving`: see `Connection.is_moving`.
    """

    __slots__ = (
        "_failure",
        "_head",
        "_next_index",
        "_writing",
        "epoch",
        "form",
        "is_moving",
        "key",
        "link",
    )

    def __init__(self, link: Link, key: str, epoch: int, form: Form, *, is_moving: bool = False) -> None:
        self.link = link
        self.is_moving = is_moving
        self.key = key
        self.epoch = epoch
        self.form = form
        self._next_index = 1
        self._writing = False
        self._failure: BrokerError | None = None
        # The common part of all commands of this epoch is packed once.
        self._head = b"*8\r\n" + pack_parts("XADD", key, "NOMKSTREAM")

    @property
    def busy(self) -> bool:
        """Whether a write is under way, or a token stream has the log."""
        return self._writing

    @property
    def writable(self) -> bool:
        """Whether another event can be appended now."""
        return self._failure is None and self.link.alive and not self._writing

    async def append(self, runs: Sequence[Run]) -> None:
        """Append tokens. Raises Fenced, LinkLost or Unwritable; the log is dead after each of them."""
        await self._write(Output(tuple(runs)))

    async def end(self, terminal: Terminal) -> None:
        """Append the terminal event; then call `ending.finish`. Raises as `append` does; then do not acknowledge."""
        await self._write(terminal)

    async def _write(self, event: Event) -> None:
        failure = (await append_many([(self, event)]))[0]
        if failure is not None:
            raise failure

    def _begin(self, event: Event) -> bytes:
        """Return the packed command of the next event; the log is busy until `_settle`. Raises what prevents it."""
        if self._writing:
            raise LogBusy(f"{self.key}: a write is in flight")
        if self._failure is not None or self.link.lost_reason is not None:
            self._failure = self._failure or LinkLost(self.link.lost_reason)
            raise self._failure
        payload = encode_payload(event, self.form)
        index = self._next_index
        self._next_index = index + 1
        self._writing = True
        return self._head + pack_parts(f"{self.epoch}-{index}", "type", event.type, "payload", payload)

    @property
    def can_be_lent(self) -> bool:
        """Whether a token stream may write it: no write under way, in msgpack, and its key is not migrating."""
        return self.writable and self.form is Form.MSGPACK and not self.is_moving

    def lend(self) -> tuple[bytes, int]:
        """Lend it to a token stream: return the part of a packed command before the entry id, and the next index.

        The log is busy until `take_back` or `settle`.
        """
        self._writing = True
        return self._head, self._next_index

    def take_back(self, next_index: int) -> None:
        """End the loan: all events below that index are in the log."""
        self._writing, self._next_index = False, next_index

    def settle(self, reply: Any) -> BrokerError | None:
        """Take the reply to a token stream's write; return the error that it means, if any."""
        return self._settle(None, reply)

    def _abandon(self) -> None:
        """Mark the log dead if a write may be in flight: nobody waits for its reply."""
        if self._writing:
            self._writing, self._failure = False, LinkLost("cancelled while a write was in flight")

    def _settle(self, event: Event | None, reply: Any) -> BrokerError | None:
        """Take the reply to a write; return the error that it means, if any."""
        self._writing = False
        if type(reply) is bytes:
            if type(event) is Terminal:
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

    Returns per item None once it is in the log, or the error (Fenced, LinkLost, Unwritable, LogBusy), not raised.
    """
    results: list[BrokerError | None] = [None] * len(items)
    writes: dict[Link, _Write] = {}
    link: Link | None = None
    for index, (log, event) in enumerate(items):
        try:
            command = log._begin(event)
        except BrokerError as refusal:
            results[index] = refusal
            continue
        if log.link is not link:
            link = log.link
            write = writes.setdefault(link, _Write([], []))
        if log.is_moving:
            write.indices.append(None)
            write.commands.append(_ASKING)
        write.indices.append(index)
        write.commands.append(command)
    try:
        sent = [(write.indices, _send(link, write.commands)) for link, write in writes.items()]
        for indices, replies in sent:
            for place, reply in zip(indices, await _replies(replies, len(indices)), strict=True):
                if place is not None:
                    log, event = items[place]
                    results[place] = log._settle(event, reply)
    except BaseException:
        # The caller was cancelled: whether these events are in their logs will never be known.
        for write in writes.values():
            for place in write.indices:
                if place is not None:
                    items[place][0]._abandon()
        raise
    return results


class _Write(NamedTuple):
    """The data sent over one link: packed commands, and their places in the list of items; None for an ASKING."""

    indices: list[int | None]
    commands: list[bytes]


def _send(link: Link, commands: Sequence[bytes]) -> "asyncio.Future[list[Any]] | LinkLost":
    try:
        return link.send(b"".join(commands), len(commands))
    except LinkLost as lost:
        return lost


async def _replies(sent: "asyncio.Future[list[Any]] | LinkLost", count: int) -> Sequence[Any]:
    try:
        return [sent] * count if isinstance(sent, LinkLost) else await sent
    except LinkLost as lost:
        return [lost] * count
