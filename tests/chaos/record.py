"""The record of a run: what each client saw, and each reply log while it grew and at the end."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from tests.chaos import wire
from tests.chaos.leftovers import find_leftovers
from tests.chaos.wire import LogEntry, Queue

_POLL_S = 0.05
AWAY = (RedisError, RedisClusterException, OSError)
"""What a client of Redis gets while it is away."""


def connect(port: int, timeout_s: float = 5) -> Any:
    """Return a client that repeats nothing."""
    return Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


@dataclass
class Seen:
    """One request, and what its client saw. Times are seconds of `time.monotonic()`."""

    id: str
    behaviour: str
    payload: dict[str, Any]
    """As in the protocol; over HTTP the same names."""
    allowed: frozenset[str]
    """Ends that the client's own doing explains."""
    question: int | None = None
    """Number of the question in the catalogue; None where there is no undisturbed answer to compare with."""
    posted_at: float | None = None
    accepted_at: float | None = None
    texts: dict[int, str] = field(default_factory=dict)
    """By choice, as streamed over HTTP."""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """By choice, as read from Redis."""
    finish_reasons: dict[int, str] = field(default_factory=dict)
    """By choice, as told over HTTP."""
    num_logprobs: dict[int, int] = field(default_factory=dict)
    """Number of tokens whose log probabilities came, by choice, over HTTP."""
    usage: dict[str, Any] | None = None
    """Token counts, as told over HTTP."""
    ended: str | None = None
    """`finished`, the code of an error, `left` (for good, by its own will) or `gave up`."""
    ended_at: float | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What the client itself found wrong: kind and detail."""
    posted_again: bool = False
    """Its producer found neither the entry nor an end in the log, and wrote the entry anew."""
    cancelled_at: float | None = None
    """When its cancel was confirmed."""
    events_at_cancel: int | None = None
    """What its log held just after that; None where it could not be read."""
    ended_before_cancel: bool = False
    """The log had its terminal when `events_at_cancel` was read."""

    @property
    def accepted(self) -> bool:
        """Whether the system has accepted the request."""
        return self.accepted_at is not None

    @property
    def reads_text(self) -> bool:
        """Whether the client reads text over HTTP, not tokens from Redis."""
        return not self.behaviour.startswith("redis")

    def accept(self) -> None:
        """Record that the system confirmed the request."""
        self.accepted_at = self.accepted_at or time.monotonic()

    def forget_text(self) -> None:
        """Begin to read over HTTP from the start."""
        self.texts, self.finish_reasons, self.num_logprobs = {}, {}, {}

    def end(self, how: str) -> None:
        """Record that the client is done."""
        if self.ended is None:
            self.ended, self.ended_at = how, time.monotonic()


@dataclass
class Log:
    """One watched reply log: entries in order of arrival, when each arrived, and the log's content at the end."""

    watched: list[LogEntry] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    final: list[LogEntry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether its terminal was seen."""
        return any(one.is_terminal for one in self.watched)


class Recorder:
    """Follows all reply logs on its own connections, unaffected by any fault except those of Redis itself. `observer`:
    the current client to use.
    """

    def __init__(self, observer: Callable[[], Any], queue: Queue) -> None:
        self._observer = observer
        self._queue = queue
        self.requests: dict[str, Seen] = {}
        self.logs: dict[str, Log] = {}
        self._live: dict[str, bytes] = {}

    def add(self, seen: Seen) -> None:
        """Follow a request from now on."""
        self.requests[seen.id] = seen
        self.logs[seen.id] = Log()
        self._live[seen.id] = b"0-0"

    async def watch(self) -> None:
        """Follow the logs forever."""
        while True:
            with suppress(*AWAY):
                await self._read_on()
            await asyncio.sleep(_POLL_S)

    async def note_cancel(self, seen: Seen) -> None:
        """Record how far a request's log is when its cancel is confirmed."""
        seen.cancelled_at = time.monotonic()
        with suppress(*AWAY):
            entries = await self._read(seen.id)
            seen.events_at_cancel = len(entries)
            seen.ended_before_cancel = any(one.is_terminal for one in entries)

    async def read_finally(self) -> None:
        """Read each log from its start again when all is quiet."""
        for request_id, log in self.logs.items():
            log.final = await self._read(request_id)

    async def left_over(self) -> dict[str, int]:
        """Return what remains in Redis, with numbers; empty when all is done."""
        return await find_leftovers(self._redis, self._queue)

    async def dead_letters(self) -> list[dict[str, str]]:
        """Return all dead letters: id, reason, message."""
        letters = [letter for key in self._queue.all_of("dead") for letter in await self._redis.xrange(key)]
        names = ("id", "reason", "message", "attempts")
        return [{name: fields.get(name.encode(), b"").decode() for name in names} for _, fields in letters]

    @property
    def _redis(self) -> Any:
        return self._observer()

    async def _read_on(self) -> None:
        if not self._live:
            return
        keys = {wire.reply_key(request_id): request_id for request_id in self._live}
        reads = self._redis.pipeline(transaction=False)
        for key, request_id in keys.items():  # one by one: in a cluster no command names two slots
            reads.xread({key: self._live[request_id]}, count=1000)
        answers = await reads.execute(raise_on_error=False)
        now = time.monotonic()
        for request_id, answer in zip(keys.values(), answers, strict=True):
            if answer and not isinstance(answer, Exception):
                entries = answer[0][1]
                self._live[request_id] = entries[-1][0]
                self._take(request_id, entries, now)

    def _take(self, request_id: str, entries: Iterable[tuple[bytes, dict[bytes, bytes]]], now: float) -> None:
        log = self.logs[request_id]
        for entry_id, fields in entries:
            log.watched.append(LogEntry.read(entry_id, fields))
            log.times.append(now)

    async def _read(self, request_id: str) -> list[LogEntry]:
        entries = await self._redis.xrange(wire.reply_key(request_id))
        return [LogEntry.read(entry_id, fields) for entry_id, fields in entries]
