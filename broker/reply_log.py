"""The writing end of one reply log: one epoch, one link, one write in flight."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError, Fenced, LinkLost, LogBusy, Unwritable
from orcastream.broker.link import Link
from orcastream.broker.resp import pack, pack_parts
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Event, Output, Run, Terminal, encode_payload, pack_run, pack_token

REFUSED = "equal or smaller"
"""What Redis says of an entry id at or below the newest; the one error that means fenced."""
_ASKING = pack(("ASKING",))
_TOKENS = pack_parts("type", "tokens", "payload") + b"$"
"""What stands between id and payload of a tokens event, but for the payload's length."""
_TOKENS_OF = [b"%b%d\r\n" % (_TOKENS, length) for length in range(64)]
"""The same with the length: that of one token is below 64."""


class ReplyLog:
    """Appends the events of one epoch. Made by `attach`, which wrote the event 0.

    Bound to the link it was attached over. After any write that failed, or whose outcome is unknown, the log is dead:
    nothing is ever written twice; attach again. `is_moving`: as `Connection.is_moving` says of the key.
    """

    __slots__ = (
        "_failure",
        "_head",
        "_id_head",
        "_is_plain",
        "_longer_from",
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
        # What all commands of this epoch have in common is packed once.
        self._head = b"*8\r\n" + pack_parts("XADD", key, "NOMKSTREAM")
        self._id_head, self._longer_from = self._id_heads(1)
        self._is_plain = form is Form.MSGPACK and not is_moving

    @property
    def writable(self) -> bool:
        """Whether another event can be appended now."""
        return self._failure is None and self.link.alive and not self._writing

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

    def _begin(self, event: Event) -> bytes:
        """The packed command of the next event; the log is busy until `_settle`. Raises what keeps it from writing."""
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

    def begin_tokens(self, commands: list[bytes], ids: list[bytes], tokens: list[int], begin: int) -> bool:
        """Add the packed command that appends `tokens[begin:]` of choice 0, and the packed reply that says it was done.

        False where `append_many` has to say why that cannot be. The log is busy until `written`, `settle` or `abandon`.
        What a `tokens` event of one run is, packed by hand.
        """
        if self._writing or self._failure is not None or self.link.lost_reason is not None or not self._is_plain:
            return False
        index = self._next_index
        self._next_index = index + 1
        self._writing = True
        if index >= self._longer_from:
            self._id_head, self._longer_from = self._id_heads(index)
        entry_id = b"%b%d\r\n" % (self._id_head, index)
        if len(tokens) - begin == 1:
            payload = pack_token(begin, tokens[begin])
            commands += (self._head, entry_id, _TOKENS_OF[len(payload)], payload, b"\r\n")
        else:
            payload = pack_run(0, begin, tokens[begin:])
            commands += (self._head, entry_id, b"%b%d\r\n" % (_TOKENS, len(payload)), payload, b"\r\n")
        ids.append(entry_id)
        return True

    def _id_heads(self, index: int) -> tuple[bytes, int]:
        """What stands before the index in a packed entry id, and from which index on that is longer."""
        num_digits = len(str(index))
        return b"$%d\r\n%d-" % (len(f"{self.epoch}-") + num_digits, self.epoch), 10**num_digits

    def settle(self, reply: Any) -> BrokerError | None:
        """Take the reply to a write of tokens; the error that it means, if any."""
        return self._settle(None, reply)

    def abandon(self) -> None:
        """Nobody waits for the reply to a write that may be in flight."""
        if self._writing:
            self._writing, self._failure = False, LinkLost("cancelled while a write was in flight")

    def _settle(self, event: Event | None, reply: Any) -> BrokerError | None:
        """Take the reply to a write; the error that it means, if any."""
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


def written(logs: Iterable[ReplyLog]) -> None:
    """What `begin_tokens` added for each stands in its log."""
    for log in logs:
        log._writing = False


async def append_many(items: Sequence[tuple[ReplyLog, Event]]) -> list[BrokerError | None]:
    """Append one event to each of several logs in one write per link.

    Per item None once it stands in the log, or the error (Fenced, LinkLost, Unwritable, LogBusy), not raised.
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
        # The caller was cancelled: whether these events stand in their logs is unknown for ever.
        for write in writes.values():
            for place in write.indices:
                if place is not None:
                    items[place][0].abandon()
        raise
    return results


class _Write(NamedTuple):
    """What goes over one link: packed commands, and their places in the list of items; None for an ASKING."""

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
