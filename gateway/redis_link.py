"""The gateway's connection for commands: one, shared, opened anew when it broke."""

import asyncio
import time

from broker.connect import connect
from broker.connection import Connection
from broker.errors import LinkLost
from broker.link import LinkObserver

PAUSE_S = 0.2
"""After a failed attempt nobody tries again for this long: a Redis that is down is not hammered."""


class RedisLink:
    """Hands out a live Connection. Which command may be repeated after LinkLost is for the caller to know."""

    def __init__(self, url: str, name: str, observer: LinkObserver | None = None) -> None:
        self._url = url
        self._name = name
        self._observer = observer
        self._link: Connection | None = None
        self._opening = asyncio.Lock()
        self._failed_at = float("-inf")
        self._failure = ""
        self._clock_offset_ms = 0

    async def get(self) -> Connection:
        """A live link; LinkLost where Redis cannot be reached now."""
        if self._link is not None and self._link.alive:
            return self._link
        async with self._opening:
            if self._link is not None and self._link.alive:
                return self._link
            if time.monotonic() - self._failed_at < PAUSE_S:
                raise LinkLost(self._failure)
            try:
                self._link = await self._open()
            except LinkLost as error:
                self._failed_at, self._failure = time.monotonic(), str(error)
                raise
            return self._link

    async def wait(self, until: float) -> Connection:
        """A live link, trying until `until` (monotonic seconds); then LinkLost."""
        while True:
            try:
                return await self.get()
            except LinkLost:
                if time.monotonic() + PAUSE_S > until:
                    raise
                await asyncio.sleep(PAUSE_S)

    @property
    def now_ms(self) -> int:
        """The server's clock as this process knows it: all deadlines are in it."""
        return int(time.time() * 1000) + self._clock_offset_ms

    async def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            await self._link.close()

    async def _open(self) -> Connection:
        link = await connect(self._url, name=self._name, observer=self._observer)
        try:
            self._clock_offset_ms = await link.server_time_ms() - int(time.time() * 1000)
        except BaseException:
            await link.close()
            raise
        return link
