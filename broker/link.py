"""ONE connection to Redis: pipelined, without retries of any kind, and dead for ever once anything failed."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError, ResponseError

from broker.errors import LinkLost
from broker.resp import ProtocolError, ReplyParser, pack, pack_many
from broker.scripts import Arg, Command, Script, ScriptCall

_CLOSED = "closed"


class LinkObserver(Protocol):
    """Told what happens on links, on the loop: must be quick and raise nothing."""

    def sent(self, num_commands: int) -> None:
        """Commands were written."""

    def answered(self, seconds: float) -> None:
        """The last reply to one write came `seconds` after it; never told of blocking links."""

    def lost(self) -> None:
        """A link broke; to be closed is not to break."""


class _InFlight:
    """One write: how many replies it waits for, those that came, and since when (loop time)."""

    __slots__ = ("count", "future", "replies", "since")

    def __init__(self, count: int, future: "asyncio.Future[list[Any]]", since: float) -> None:
        self.count = count
        self.future = future
        self.since = since
        self.replies: list[Any] = []


class _Stream(asyncio.Protocol):
    """Takes over the socket's stream: bytes go to the link as they come, without a task between."""

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


class Link:
    """One connection. Commands of concurrent callers are written in order and their replies resolved in order.

    When anything fails (end of file, a reply that takes longer than `reply_timeout_s`, bytes that are no reply) the
    link is dead: what is in flight and every later call raises LinkLost. A caller that is cancelled merely ignores its
    reply. Blocking commands belong on a link of their own (`blocking`), with a BLOCK well below `reply_timeout_s`.
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
        # The connection object opened the socket and spoke the greeting; from here on the link alone owns the stream.
        connection._reader = connection._writer = None
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept: a writer that nobody refers to closes its transport
        self._transport = writer.transport
        self._parser = ReplyParser()
        self._timeout_s = reply_timeout_s
        self._observer = observer
        self._timed_by = None if blocking else observer
        self._in_flight: deque[_InFlight] = deque()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self.lost_reason: str | None = None
        self.client_id = 0
        """The server's number of this connection; 0 where it does not tell."""
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
        """Connect to `url` (redis://, rediss://, unix://; user, password and db as redis-py reads them).

        Raises LinkLost where the server cannot be reached, ResponseError where it refuses the greeting, ValueError
        for a URL that is none.
        """
        options: dict[str, Any] = dict(parse_url(url))
        connection_class = options.pop("connection_class", Connection)
        for name_of_pool in ("max_connections", "timeout"):
            options.pop(name_of_pool, None)
        # Without a socket timeout redis-py does without asyncio.wait_for, which can swallow a cancellation before 3.12.
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
        except ResponseError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise LinkLost(f"cannot connect: {error}") from error
        link = cls(connection, reply_timeout_s, observer, blocking)
        try:
            link.client_id = await link.call("CLIENT", "ID")
        except NoPermissionError:
            pass
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return self.lost_reason is None

    async def wait_lost(self) -> str:
        """Return the reason once the link is dead."""
        await self._lost.wait()
        return self.lost_reason or ""

    async def close(self) -> None:
        """End the link; what is in flight raises LinkLost."""
        self._die(_CLOSED)
        await asyncio.gather(self._guard, return_exceptions=True)
        await self._stream.ended

    async def call(self, *args: Arg) -> Any:
        """Carry out one command: its reply, ResponseError where the server says no, LinkLost where nobody knows."""
        reply = (await self.send(pack(args), 1))[0]
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def call_many(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """Carry out several commands in one write; error replies stand in the list as ResponseError.

        A script that the server does not know yet runs after the other commands.
        """
        if not commands:
            return []
        plain = [command.by_hash() if isinstance(command, ScriptCall) else command for command in commands]
        replies = await self.send(pack_many(plain), len(plain))
        for index, reply in enumerate(replies):
            command = commands[index]
            if isinstance(reply, NoScriptError) and isinstance(command, ScriptCall):
                replies[index] = (await self.send(pack(command.by_text()), 1))[0]
        return replies

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script; its reply, ResponseError or LinkLost as for `call`."""
        reply = (await self.call_many([script.call(keys, args)]))[0]
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def send(self, packed: bytes, num_replies: int) -> "asyncio.Future[list[Any]]":
        """Write packed commands; a future of their replies. The bytes are handed over whole before this returns."""
        if self.lost_reason is not None:
            raise LinkLost(self.lost_reason)
        now = self._loop.time()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._in_flight.append(_InFlight(num_replies, future, now))
        self._transport.write(packed)
        if self._observer is not None:
            self._observer.sent(num_replies)
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._timeout_s, self._check_timeout)
        return future

    async def server_time_ms(self) -> int:
        """The server's clock, milliseconds of Unix time."""
        return time_ms(await self.call("TIME"))

    async def _end_with_the_loop(self) -> None:
        """A loop that ends cancels its tasks, and knows nothing of sockets that nobody closed."""
        try:
            await self._lost.wait()
        finally:
            self._die("the loop ended")

    def _received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            replies = self._parser.feed(data)
            while replies:
                replies = self._resolve(replies)
        except ProtocolError as error:
            self._die(f"{type(error).__name__}: {error}")

    def _resolve(self, replies: list[Any]) -> list[Any]:
        """Give the oldest write what it waits for; the replies that are left."""
        if not self._in_flight:
            raise ProtocolError("a reply nobody asked for")
        oldest = self._in_flight[0]
        missing = oldest.count - len(oldest.replies)
        oldest.replies += replies[:missing]
        if len(replies) >= missing:
            self._in_flight.popleft()
            if self._timed_by is not None:
                self._timed_by.answered(self._heard_at - oldest.since)
            if not oldest.future.done():
                oldest.future.set_result(oldest.replies)
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
        for waiting in self._in_flight:
            if not waiting.future.done():
                waiting.future.set_exception(LinkLost(reason))
                waiting.future.exception()  # marked as seen: its caller may be gone
        self._in_flight.clear()


def time_ms(reply: Sequence[bytes]) -> int:
    """A reply to TIME in milliseconds."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000
