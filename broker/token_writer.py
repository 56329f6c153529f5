"""Writes token streams: one write per link at a time, with an event for every stream that has new tokens."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from orcastream.broker.errors import BrokerError, LinkLost
from orcastream.broker.link import Link
from orcastream.broker.reply_log import ReplyLog
from orcastream.broker.token_stream import TokenStream
from orcastream.broker.write_clock import WriteClock

OnWritten = Callable[[int], None]
OnSettled = Callable[[TokenStream, BrokerError | None], None]


class TokenWriter:
    """Collects tokens during a write and sends them in the next one. Nothing here waits, and no task is needed.

    `on_written` receives how many added tokens were dealt with; `on_settled` a stream that was closed during a write of
    it, once that is written (None) or refused, and a stream that a refusal closed. Neither may raise. Streams on a lost
    link are not reported: the loss ends them all.
    """

    def __init__(self, on_written: OnWritten, on_settled: OnSettled) -> None:
        self.on_written = on_written
        self.on_settled = on_settled
        self.clock = WriteClock()
        self._links: dict[Link, LinkWriter] = {}
        self._waits: list[asyncio.Future[None]] = []

    def open(self, log: ReplyLog, tokens: list[int], num_logged: int, owner: Any = None) -> TokenStream | None:
        """Return a stream of `tokens` for `owner`, the first `num_logged` of which are in the log; the others go with
        the next `send`. None if the log's events must be written singly.
        """
        if not log.can_be_lent:
            return None
        writer = self._links.get(log.link)
        if writer is None:
            writer = self._links[log.link] = LinkWriter(self, log.link)
        stream = TokenStream(writer, log, tokens, num_logged, owner)
        if stream.num_unsent:
            writer.waiting.append(stream)
        return stream

    def add(self, streams: Sequence[TokenStream], tokens: Sequence[int]) -> list[tuple[TokenStream, int]]:
        """Add to each stream its token; return the pairs that could not be added, whose streams are closed.

        Call `send` after this.
        """
        refused = []
        for stream, token in zip(streams, tokens, strict=True):
            writer = stream.writer
            if writer is None:
                refused.append((stream, token))
                continue
            stream.tokens.append(token)
            if not stream.num_unsent:
                writer.waiting.append(stream)
            stream.num_unsent += 1
            writer.num_waiting += 1
        return refused

    def send(self) -> None:
        """Write the added tokens, on links without a write under way."""
        for writer in self._links.values():
            writer.send()

    async def settled(self) -> None:
        """Write the added tokens, and return once no write is under way."""
        self.send()
        while any(one.waiting or one.under_way is not None for one in self._links.values()):
            wait = asyncio.get_running_loop().create_future()
            self._waits.append(wait)
            await wait

    def forget(self) -> None:
        """Forget the links, which are closed, as are all streams."""
        self.send()
        self._links = {}

    def answered(self) -> None:
        """Notify waiters that a write has ended."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if not wait.done():
                wait.set_result(None)


class LinkWriter:
    """The streams of one link: those in the write under way, and those waiting for the next.

    The reply to an XADD with an explicit id is that id, so the bytes of all replies are known beforehand and need no
    parsing while they match. A `Link` reports replies here as to a future (`broker.link.Answer`).
    """

    __slots__ = (
        "_closing",
        "_in_flight",
        "_link",
        "_num_in_flight",
        "_num_writes",
        "_writer",
        "num_waiting",
        "under_way",
        "waiting",
    )

    def __init__(self, writer: TokenWriter, link: Link) -> None:
        self._writer = writer
        self._link = link
        self._num_writes = 0
        self.under_way: int | None = None
        """The number of the write under way; None: no write."""
        self._in_flight: list[TokenStream] = []
        self._num_in_flight = 0
        """Number of added tokens in the write under way."""
        self.waiting: list[TokenStream] = []
        self.num_waiting = 0
        """Number of added tokens in no write yet."""
        self._closing: dict[TokenStream, None] = {}
        """The streams in flight that were closed meanwhile."""

    def send(self) -> None:
        """Write the waiting tokens, unless a write is under way."""
        if self.under_way is not None:
            return
        if not self.waiting:
            self._dealt_with()
            return
        streams, self.waiting = self.waiting, []
        self._in_flight = streams
        self._num_in_flight, self.num_waiting = self.num_waiting, 0
        self._num_writes += 1
        self.under_way = number = self._num_writes
        commands: list[bytes] = []
        ids: list[bytes] = []
        for stream in streams:
            stream.pack(number, commands, ids)
        self._writer.clock.begin()
        try:
            self._link.send_for(self, b"".join(commands), len(ids), b"".join(ids))
        except LinkLost as lost:
            self.set_exception(lost)

    def withdraw(self, stream: TokenStream, *, in_flight: bool) -> None:
        """Stop writing a stream; `in_flight`: it is in the write under way."""
        if stream.num_unsent:
            self.waiting.remove(stream)
        if in_flight:
            self._closing[stream] = None

    def done(self) -> bool:
        """Return False: every answer is awaited."""
        return False

    def set_result(self, replies: list[Any] | None) -> None:
        """Take the replies to the write under way; None: all of them are as expected."""
        streams, self._in_flight = self._in_flight, []
        settled: list[tuple[TokenStream, BrokerError | None]] = []
        if replies is not None:
            for stream, reply in zip(streams, replies, strict=True):
                if type(reply) is not bytes:
                    self._closing.pop(stream, None)
                    if stream.writer is not None:
                        self.withdraw(stream, in_flight=False)
                    settled.append((stream, stream.fail(reply)))
        self._end()
        closing, self._closing = self._closing, {}
        for stream in closing:
            stream.give_back()
            settled.append((stream, None))
        for stream, failure in settled:
            self._writer.on_settled(stream, failure)
        self._dealt_with()
        if self.waiting:
            self.send()

    def set_exception(self, lost: BaseException) -> None:
        """Fail all streams: the link is lost, and the outcome of the write will never be known."""
        streams = {*self._in_flight, *self.waiting}
        self._in_flight, self.waiting, self._closing = [], [], {}
        for stream in streams:
            stream.fail(lost)
        self._end()
        self._dealt_with()

    def _end(self) -> None:
        self.under_way = None
        self._writer.clock.end()

    def _dealt_with(self) -> None:
        num_tokens, self._num_in_flight = self._num_in_flight, 0
        if not self.waiting:  # streams that were closed: their owners publish their tokens
            num_tokens, self.num_waiting = num_tokens + self.num_waiting, 0
        if num_tokens:
            self._writer.on_written(num_tokens)
        self._writer.answered()
