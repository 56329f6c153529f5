"""The links of one stretch of time without a broken connection, and the broker's nouns on them."""

import asyncio
from typing import Self

from broker.cancel import ControlReader
from broker.claim import Claimer
from broker.lease import Leases
from broker.link import Link, LinkObserver
from broker.presence import Presence
from broker.queue import RequestQueue
from schemas.keys import Keys
from worker.settings import WorkerSettings


class Session:
    """An epoch lives on one connection: when any link of a session breaks, all epochs written over it are over."""

    def __init__(
        self, link: Link, claim_link: Link, control_link: Link, keys: Keys, worker: str, claimer: Claimer
    ) -> None:
        self.link = link
        self.claim_link = claim_link
        self.keys = keys
        self.queue = RequestQueue(link, keys)
        self.claimer = claimer
        self.leases = Leases(link, keys, worker)
        self.control = ControlReader(control_link, keys)
        self.presence = Presence(link, keys, worker)
        self._links = (link, claim_link, control_link)
        self._clock_offset_ms = 0.0

    @classmethod
    async def open(
        cls,
        settings: WorkerSettings,
        url: str,
        keys: Keys,
        worker: str,
        *,
        reconnected: bool,
        observer: LinkObserver | None = None,
    ) -> Self:
        """Connect, and make sure the queue exists. LinkLost or ResponseError while Redis is away or still loading."""
        links: list[Link] = []
        try:
            for purpose in ("main", "claim", "control"):
                blocking = purpose != "main"
                links.append(await Link.open(url, name=f"{worker}:{purpose}", observer=observer, blocking=blocking))
            link, claim_link, control_link = links
            server_ms = await link.server_time_ms()
            not_before_ms = server_ms + settings.lease_ms if reconnected else 0
            claimer = Claimer(
                link,
                keys,
                worker,
                lease_ms=settings.lease_ms,
                retention_ms=settings.retention_ms,
                not_before_ms=not_before_ms,
                class_weight=settings.class_weight,
            )
            session = cls(link, claim_link, control_link, keys, worker, claimer)
            session._set_clock(server_ms)
            await session.queue.ensure_groups()
            await session.control.begin()
            return session
        except BaseException:
            await asyncio.gather(*(link.close() for link in links), return_exceptions=True)
            raise

    @property
    def now_ms(self) -> int:
        """The server's clock, by which deadlines are kept: this host's own may be wrong."""
        return int(asyncio.get_running_loop().time() * 1000 + self._clock_offset_ms)

    async def read_clock(self) -> None:
        """Look at the server's clock again. Raises LinkLost, ResponseError."""
        self._set_clock(await self.link.server_time_ms())

    def _set_clock(self, server_ms: int) -> None:
        self._clock_offset_ms = server_ms - asyncio.get_running_loop().time() * 1000

    async def wait_lost(self) -> str:
        """Return the reason when the first of the links has broken."""
        waits = [asyncio.ensure_future(link.wait_lost()) for link in self._links]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    async def close(self) -> None:
        """Close every link, whatever state it is in."""
        await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)
