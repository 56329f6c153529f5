"""A process's shared connection for commands, reopened after it breaks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, TypeVar

from redis.exceptions import ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.errors import PASSING, Closed, LinkLost, NotOnDisk, Unwritable, error_code
from orcastream.broker.link import LinkObserver

Result = TypeVar("Result")
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Nobody sets this clock, unlike the host's time of day, and it continues while the machine sleeps."""
_CLOCK_AGE_S: Final = 1.0
"""How old a reading of the server's clock may get: that clock may be set at any time."""
_CLOSED = "the connection was closed"


class RedisLink:
    """Provides a live Connection. The caller must know which commands may be repeated after LinkLost.

    After a failed attempt there is a pause before the next one, so that a Redis that is down is not hammered.
    """

    def __init__(self, url: str, name: str, observer: LinkObserver | None = None) -> None:
        self._url = url
        self._name = name
        self._observer = observer
        self._link: Connection | None = None
        self._opening = asyncio.Lock()
        self._back_off = BackOff()
        self._again_at = float("-inf")
        self._failure = ""
        self._closed = False
        self._clock_offset_ms = int(time.time() * 1000) - _clock_ms()
        self._clock_read_at = float("-inf")
        self._clock_reading: asyncio.Task[None] | None = None
        self.opened_at = float("-inf")
        """When the link was opened (loop time)."""

    async def get(self) -> Connection:
        """Return a live link; raise LinkLost if Redis cannot be reached now, Closed after `close`."""
        if self._link is not None and self._link.alive:
            self._read_clock_again(self._link)
            return self._link
        async with self._opening:
            if self._link is not None and self._link.alive:
                return self._link
            if self._closed:
                raise Closed(_CLOSED)
            if time.monotonic() < self._again_at:
                raise LinkLost(self._failure)
            try:
                self._link = await self._open()
            except LinkLost as error:
                self._again_at, self._failure = time.monotonic() + self._back_off.failed(), str(error)
                raise
            if self._closed:
                await self._link.close()
                raise Closed(_CLOSED)
            self._back_off.succeeded()
            self.opened_at = asyncio.get_running_loop().time()
            return self._link

    async def wait(self, until: float) -> Connection:
        """Return a live link, trying until `until` (monotonic seconds); then raise LinkLost."""
        while True:
            try:
                return await self.get()
            except LinkLost:
                if self._again_at > until:
                    raise
                await asyncio.sleep(self._again_at - time.monotonic())

    async def patiently(
        self, action: Callable[[Connection], Awaitable[Result]], until: float, passing: Collection[str] = PASSING
    ) -> Result:
        """Run an idempotent action, repeating it while Redis is unreachable, until `until` (monotonic seconds).

        It is also repeated after error replies with a code in `passing`. At the end, raises the last LinkLost,
        ResponseError, Unwritable or NotOnDisk. Other errors are raised at once.
        """
        back_off = BackOff()
        while True:
            try:
                return await action(await self.wait(until))
            except (LinkLost, ResponseError, Unwritable, NotOnDisk) as error:
                pause_s = back_off.failed()
                if not _is_passing(error, passing) or time.monotonic() + pause_s >= until:
                    raise
            await asyncio.sleep(pause_s)

    @property
    def now_ms(self) -> int:
        """The server's clock as this process knows it, to which all deadlines refer."""
        return _clock_ms() + self._clock_offset_ms

    async def close(self) -> None:
        """Close the connection; callers that wait for one, or retry, get Closed."""
        self._closed = True
        if self._link is not None:
            await self._link.close()

    async def _open(self) -> Connection:
        link = await connect(self._url, name=self._name, observer=self._observer)
        try:
            await self._read_clock(link)
        except BaseException:
            await link.close()
            raise
        return link

    def _read_clock_again(self, link: Connection) -> None:
        """Read the server's clock in the background, if the last reading is old."""
        now = time.monotonic()
        if now - self._clock_read_at >= _CLOCK_AGE_S:
            self._clock_read_at = now
            self._clock_reading = asyncio.create_task(self._read_clock_if_possible(link))

    async def _read_clock_if_possible(self, link: Connection) -> None:
        with suppress(LinkLost, ResponseError):
            await self._read_clock(link)

    async def _read_clock(self, link: Connection) -> None:
        self._clock_read_at = time.monotonic()
        self._clock_offset_ms = await link.server_time_ms() - _clock_ms()


def _clock_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def _is_passing(error: LinkLost | ResponseError | Unwritable | NotOnDisk, codes: Collection[str]) -> bool:
    if isinstance(error, LinkLost | NotOnDisk):
        return True
    code = error.code if isinstance(error, Unwritable) else error_code(error)
    return code in codes
