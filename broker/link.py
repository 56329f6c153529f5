"""ONE connection to Redis: pipelined, without retries of any kind, and dead forever after any failure."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakSet

from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.connection import Connection as SocketConnection
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from orcastream.broker.address import POOL_PARAMETERS
from orcastream.broker.connection import Connection
from orcastream.broker.errors import LinkLost, renews_nothing
from orcastream.broker.resp import ProtocolError, ReplyParser, pack, pack_many, parse_error
from orcastream.broker.scripts import Arg, Command, ScriptCall

_CLOSED = "closed"
_ALONG_WITHIN_S = 0.005
"""How long a `post_along` waits for another write."""


class LinkObserver(Protocol):
    """Receives the events of links, on the loop: must be quick and raise nothing."""

    def sent(self, num_commands: int) -> None:
        """Commands were written."""

    def answered(self, seconds: float) -> None:
        """The last reply to one write came after `seconds`; not called for blocking links."""

    def lost(self) -> None:
        """A link broke; closing it does not count."""


class Answer(Protocol):
    """The recipient of the replies to a write, like a future. Called on the loop: must be quick and raise nothing."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, result: Any, /) -> None:
        """The replies have arrived; None if they are the expected bytes."""

    def set_exception(self, error: BaseException, /) -> None:
        """The link is dead (LinkLost)."""


class _InFlight:
    """One write: how many replies it waits for, those that arrived, and since when (loop time)."""

    __slots__ = ("answer", "count", "expected", "matched", "replies", "since")

    def __init__(self, count: int, answer: Answer, since: float, expected: bytes) -> None:
        self.answer = answer
        self.count = count
        self.expected = expected
        """The bytes of all replies, as far as predicted; the first `matched` of them have arrived."""
        self.matched = 0
        self.since = since
        self.replies: list[Any] = []


class _Stream(asyncio.Protocol):
    """Takes over the socket's stream: bytes go straight to the link, without a task in between."""

    def __init__(self, link: "Link") -> None:
        self._link = link
        self.ended: asyncio.Future[None] = link._loop.create_future()

    def data_received(self, data: bytes) -> None:
        self._link._received(data)

    def connection_lost(self, error: Exception | None) -> None:
        why = "the server closed the connection" if error is None else f"{type(error).__name__}: {error}"
        self._link._die(why)
        if not self.ended.done():
            self.ended.set_result(None)


class Link(Connection):
    """One connection. Commands of concurrent callers are written in order and their replies resolved in order.

    After any failure (end of file, a reply that takes longer than `reply_timeout_s`, bytes that are not a reply, a
    server that has become a replica) the link is dead: commands in flight and all later calls raise LinkLost. A caller
    that is cancelled only ignores its reply. Blocking commands need their own link (`blocking`), with a BLOCK well
    below `reply_timeout_s`.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        reply_timeout_s: float,
        observer: LinkObserver | None = None,
        blocking: bool = False,
    ) -> None:
        reader, writer = connection._reader, connection._writer
        if reader is None or writer is None:
            raise LinkLost("not connected")
        # The connection object opened the socket and did the handshake; from here on only the link uses the stream.
        connection._reader = connection._writer = None
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept: a writer without references closes its transport
        self._transport = writer.transport
        self._parser = ReplyParser()
        self._timeout_s = reply_timeout_s
        self._observer = observer
        self._timed_by = None if blocking else observer
        self._in_flight: deque[_InFlight] = deque()
        self._along, self._num_along = b"", 0
        """The packed commands that go with the next write, and their number."""
        self._heard_at = 0.0
        self.longest_wait_s = 0.0
        """The longest time that the server took to answer, since a caller last reset it to 0."""
        self.renewed_nothing = False
        """Whether the server sent an error that renewals get, too, since a caller last reset it to False."""
        self._timer: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._others: WeakSet[Link] = WeakSet()
        self.client_id = 0
        """The server's id of this connection; 0 if it does not say."""
        self.server = ""
        """Host and port connected to."""
        self._options: Mapping[str, Any] = {}
        self._stream = _Stream(self)
        if reader.at_eof() or self._transport.is_closing():
            self._transport.abort()
            raise LinkLost("the server closed the connection")
        self._transport.set_protocol(self._stream)
        self._guard = self._loop.create_task(self._end_with_the_loop(), name="redis-link")

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        name: str = "",
        reply_timeout_s: float = 5.0,
        observer: LinkObserver | None = None,
        blocking: bool = False,
    ) -> "Link":
        """Connect to the one server of `url` (redis://, rediss://, unix://), as redis-py reads it.

        Raises LinkLost if the server cannot be reached, ResponseError if it refuses the handshake, ValueError for an
        invalid URL.
        """
        options = {key: value for key, value in parse_url(url).items() if key not in POOL_PARAMETERS}
        return await cls.open_with(
            options, name=name, reply_timeout_s=reply_timeout_s, observer=observer, blocking=blocking
        )

    @classmethod
    async def open_with(
        cls,
        connection_options: Mapping[str, Any],
        *,
        name: str = "",
        reply_timeout_s: float = 5.0,
        observer: LinkObserver | None = None,
        blocking: bool = False,
    ) -> "Link":
        """Connect as redis-py would with these connection options. Raises as `open` does."""
        options = dict(connection_options)
        connection_class = options.pop("connection_class", SocketConnection)
        # Without a socket timeout redis-py avoids asyncio.wait_for, which can swallow a cancellation before 3.12.
        options.update(socket_timeout=None, socket_connect_timeout=reply_timeout_s, driver_info=None)
        options.update(protocol=2, retry=None, retry_on_error=[], retry_on_timeout=False, decode_responses=False)
        if name:
            options["client_name"] = name
        connection: AbstractConnection = connection_class(**options)
        try:
            async with asyncio.timeout(reply_timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]
        except AuthenticationError as error:
            raise ResponseError(str(error), status_code="WRONGPASS") from None
        except NoPermissionError as error:
            raise parse_error(f"NOPERM {error}") from None
        except ResponseError as error:
            raise _as_lost_if_full(error) from None
        except (RedisError, OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {reply_timeout_s} s"  # asyncio's timeout has no message
            raise LinkLost(f"cannot connect: {why}") from error
        link = cls(connection, reply_timeout_s, observer, blocking)
        link.server = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        link._options = connection_options
        try:
            link.client_id = await link.call("CLIENT", "ID")
        except NoPermissionError:
            pass
        except ResponseError as error:
            await link.close()
            raise _as_lost_if_full(error) from None
        except BaseException:
            await link.close()
            raise
        return link

    async def link_for(self, key: str) -> "Link":
        """Return this link."""
        return self

    async def another(self, key: str, *, name: str) -> "Link":
        """Open a new link to this very server: the URL may lead to another master by now. It ends with this one."""
        other = await Link.open_with(
            self._options, name=name, reply_timeout_s=self._timeout_s, observer=self._observer, blocking=True
        )
        if self.lost_reason is not None:
            await other.close()
            raise LinkLost(self.lost_reason)
        self._others.add(other)
        return other

    async def wait_lost(self) -> str:
        """Wait until the link is dead and return the reason."""
        await self._lost.wait()
        return self.lost_reason or ""

    async def close(self) -> None:
        """Close the link; commands in flight raise LinkLost."""
        self._die(_CLOSED)
        await asyncio.gather(self._guard, return_exceptions=True)
        await self._stream.ended

    def drop(self, reason: str) -> None:
        """Treat the connection as broken: the server must not be used any more."""
        self._die(reason)

    async def call(self, *args: Arg) -> Any:
        """Return the reply to one command. Raises ResponseError if refused, LinkLost if the outcome is unknown."""
        reply = (await self.send(pack(args), 1))[0]
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def call_many(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """Carry out several commands in one write; error replies appear in the list as ResponseError.

        A script that the server does not know yet runs after the other commands.
        """
        if not commands:
            return []
        replies: list[Any] = await self.send(_by_hash(commands), len(commands))
        for index, reply in enumerate(replies):
            command = commands[index]
            if isinstance(reply, NoScriptError) and isinstance(command, ScriptCall):
                replies[index] = (await self.send(pack(command.by_text()), 1))[0]
        return replies

    async def call_in_order(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """As `call_many`, but if the server does not know a script, all commands from there on are sent again."""
        if not commands:
            return []
        replies: list[Any] = await self.send(_by_hash(commands), len(commands))
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError) and isinstance(commands[index], ScriptCall):
                left = commands[index:]
                return replies[:index] + list(await self.send(_in_text(left), len(left)))
        return replies

    def post(self, commands: Sequence[Command | ScriptCall]) -> None:
        """Send without waiting for replies. Raises LinkLost."""
        self.send(_in_text(commands), len(commands))

    def post_along(self, commands: Sequence[Command | ScriptCall]) -> None:
        """See Connection."""
        if self.lost_reason is not None:
            raise LinkLost(self.lost_reason)
        packed = _in_text(commands)
        if not self._num_along:
            self._loop.call_later(_ALONG_WITHIN_S, self._send_along)
        self._along += packed
        self._num_along += len(commands)

    def _send_along(self) -> None:
        """Send the held commands: no other write came in time."""
        if self._num_along and self.alive:
            self.send(*self._take_along())

    def _take_along(self) -> tuple[bytes, int]:
        along = self._along, self._num_along
        self._along, self._num_along = b"", 0
        return along

    def send(self, packed: bytes, num_replies: int, expected: bytes = b"") -> "asyncio.Future[Any]":
        """Write packed commands; return a future of the list of their replies. The bytes are handed over completely
        before this returns.

        With `expected`, the bytes of all replies if nothing is wrong, the future yields None when exactly these
        arrive: they are not parsed.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send_for(future, packed, num_replies, expected)
        return future

    def send_for(self, answer: Answer, packed: bytes, num_replies: int, expected: bytes = b"") -> None:
        """As `send`, with the replies passed to `answer` as they come. Raises LinkLost."""
        if self.lost_reason is not None:
            raise LinkLost(self.lost_reason)
        now = self._loop.time()
        num_commands = num_replies
        if self._num_along:
            along, num_along = self._take_along()
            packed, num_commands = along + packed, num_commands + num_along
            self._in_flight.append(_InFlight(num_along, self._loop.create_future(), now, b""))
        self._in_flight.append(_InFlight(num_replies, answer, now, expected))
        self._transport.write(packed)
        if self._observer is not None:
            self._observer.sent(num_commands)
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._timeout_s, self._check_timeout)

    async def _end_with_the_loop(self) -> None:
        """Close the socket when the loop ends: it cancels its tasks but does not close open sockets."""
        try:
            await self._lost.wait()
        finally:
            self._die("the loop ended")

    def _received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            if data := self._unforeseen(data):
                for write in self._in_flight:
                    write.expected = b""  # its replies may begin in the bytes that the parser just got
                replies = unresolved = self._parser.feed(data)
                while unresolved:
                    unresolved = self._resolve(unresolved)
                for reply in replies:
                    if isinstance(reply, ResponseError):
                        self._refused(reply)
        except ProtocolError as error:
            self._die(f"{type(error).__name__}: {error}")

    def _refused(self, error: ResponseError) -> None:
        if isinstance(error, ReadOnlyError):
            self._die("the server is a replica, and takes no writes")
        elif renews_nothing(error):
            self.renewed_nothing = True

    def _unforeseen(self, data: bytes) -> bytes:
        """Return the part of `data` left to parse after removing replies that match what the oldest writes expect."""
        while data and self._in_flight and (expected := self._in_flight[0].expected):
            oldest = self._in_flight[0]
            begin = oldest.matched
            length = min(len(data), len(expected) - begin)
            if not expected.startswith(data[:length], begin):
                return expected[:begin] + data
            oldest.matched = begin + length
            data = data[length:]
            if oldest.matched == len(expected):
                self._done(None)
        return data

    def _done(self, result: Any) -> None:
        """Complete the oldest write."""
        oldest = self._in_flight.popleft()
        waited_s = self._heard_at - oldest.since
        if waited_s > self.longest_wait_s:
            self.longest_wait_s = waited_s
        if self._timed_by is not None:
            self._timed_by.answered(waited_s)
        if not oldest.answer.done():
            oldest.answer.set_result(result)

    def _resolve(self, replies: list[Any]) -> list[Any]:
        """Give the oldest write its replies; return the remaining ones."""
        if not self._in_flight:
            raise ProtocolError("a reply nobody asked for")
        oldest = self._in_flight[0]
        missing = oldest.count - len(oldest.replies)
        oldest.replies += replies[:missing]
        if len(replies) >= missing:
            self._done(oldest.replies)
        return replies[missing:]

    def _check_timeout(self) -> None:
        self._timer = None
        if not self._in_flight or not self.alive:
            return
        due = max(self._in_flight[0].since, self._heard_at) + self._timeout_s
        if self._loop.time() >= due:
            self._die(f"no reply within {self._timeout_s} s")
        else:
            self._timer = self._loop.call_at(due, self._check_timeout)

    def _die(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        self._lost.set()
        if self._observer is not None and reason != _CLOSED:
            self._observer.lost()
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        for other in self._others:
            other.drop(reason)
        unanswered = [write.answer for write in self._in_flight if not write.answer.done()]
        self._in_flight.clear()
        for answer in unanswered:
            answer.set_exception(LinkLost(reason))
            if isinstance(answer, asyncio.Future):
                answer.exception()  # marked as seen: its caller may be gone


def _by_hash(commands: Sequence[Command | ScriptCall]) -> bytes:
    """Return the packed commands, scripts by their hashes: the caller sees that the server does not know one."""
    return pack_many([command.by_hash() if isinstance(command, ScriptCall) else command for command in commands])


def _in_text(commands: Sequence[Command | ScriptCall]) -> bytes:
    """Return the packed commands, scripts as text: no caller would see that the server does not know one."""
    return pack_many([command.by_text() if isinstance(command, ScriptCall) else command for command in commands])


def _as_lost_if_full(error: ResponseError) -> ResponseError | LinkLost:
    """A server that has as many connections as it takes says so in its first reply, and hangs up."""
    return LinkLost(f"cannot connect: {error}") if "max number of clients" in str(error) else error
