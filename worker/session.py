"""The connections of one period without a connection loss, and the broker's objects that use them."""

import asyncio
import logging
from typing import Self

from orcastream.broker.attach import Attachment, attach
from orcastream.broker.cancel import ControlReader
from orcastream.broker.claim import Claimer
from orcastream.broker.cleanup import finish
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.lane_waits import LaneWaits
from orcastream.broker.lease import Leases
from orcastream.broker.link import Link, LinkObserver
from orcastream.broker.presence import Presence
from orcastream.broker.queue import RequestQueue
from orcastream.broker.server_state import eviction_warning
from orcastream.broker.stats import StatsStream
from orcastream.broker.throughput import ThroughputReports
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import Keys
from orcastream.worker.running import Running
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")

_FIRST_WAIT_MS = 2000
"""If Redis was frozen when this worker started, every lease looks expired: let the owners connect first."""


class Session:
    """An epoch lives on one connection: when anything of a session breaks, all epochs written over it are over."""

    def __init__(
        self,
        link: Connection,
        waits: LaneWaits,
        control_link: Link,
        keys: Keys,
        worker: str,
        claimer: Claimer,
        *,
        lease_ms: int,
        retention_ms: int,
    ) -> None:
        self._worker = worker
        self._lease_ms = lease_ms
        self._retention_ms = retention_ms
        self.link = link
        self.waits = waits
        self.keys = keys
        self.queue = RequestQueue(link, keys)
        self.claimer = claimer
        self.leases = Leases(link, keys, worker)
        self.control = ControlReader(control_link, keys)
        self.presence = Presence(link, keys, worker)
        self.throughput = ThroughputReports(link, keys, worker)
        self.stats = StatsStream(link, keys)
        self._connections: tuple[Connection, ...] = (link, control_link)
        self._clock_offset_ms = self._clock_read_s = 0.0

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
        """Connect, and create the queue if needed. Raises LinkLost or ResponseError while Redis is down or loading."""
        opened: list[Connection] = []
        try:
            opened.append(link := await connect(url, name=f"{worker}:main", observer=observer))
            opened.append(control_link := await link.another(keys.control, name=f"{worker}:control"))
            if warning := await eviction_warning(link):
                log.warning("Redis may lose requests", extra={"why": warning})
            server_ms = await link.server_time_ms()
            wait_ms = settings.lease_ms if reconnected else min(settings.lease_ms, _FIRST_WAIT_MS)
            claimer = Claimer(
                link,
                keys,
                worker,
                lease_ms=settings.lease_ms,
                retention_ms=settings.retention_ms,
                max_deliveries=settings.max_deliveries,
                not_before=asyncio.get_running_loop().time() + wait_ms / 1000,
                class_weight=settings.class_weight,
            )
            waits = LaneWaits(link, keys, f"{worker}:claim")
            session = cls(
                *(link, waits, control_link, keys, worker, claimer),
                lease_ms=settings.lease_ms,
                retention_ms=settings.retention_ms,
            )
            session._set_clock(server_ms)
            await session.queue.ensure_groups()
            await session.control.begin(link)
            return session
        except BaseException:
            await asyncio.gather(*(one.close() for one in opened), return_exceptions=True)
            raise

    async def attach(self, running: Running, *, owned: bool = True, is_new: bool = False) -> Attachment:
        """Open an epoch of `running` and read its log, as `orcastream.broker.attach.attach` does.

        `is_new`: nobody has begun it. A claim is no older than its entry; half a lease is left for clock differences.
        """
        request = running.request
        return await attach(
            self.link,
            self.keys,
            request_id=running.id,
            worker=self._worker,
            started=running.started(self._worker, self.keys.model),
            ref=running.ref,
            form=request.form,
            log_expire_at_ms=request.deadline_ms + self._retention_ms,
            retention_ms=self._retention_ms,
            owned=owned,
            above_epoch=running.last_epoch,
            first_claim_until_ms=running.ref.order[0] + self._lease_ms // 2 if is_new else None,
        )

    async def has_log(self, running: Running) -> bool:
        """Whether there is a reply log. Raises LinkLost, ResponseError."""
        return bool(await self.link.call("EXISTS", self.keys.reply(running.id)))

    async def finish(self, running: Running, terminal: Terminal) -> None:
        """Clean up after `terminal`, which is in the log of `running`. Raises LinkLost, Unwritable."""
        await finish(
            self.link,
            self.keys,
            request_id=running.id,
            tenant=running.request.payload.tenant,
            ref=running.ref,
            terminal=terminal,
            retention_ms=self._retention_ms,
        )

    @property
    def now_ms(self) -> int:
        """The server's clock, to which deadlines refer: this host's own may be wrong."""
        return int(self.server_ms(asyncio.get_running_loop().time()))

    def server_ms(self, monotonic_s: float) -> float:
        """Convert a reading of `time.monotonic()`, which is the loop's clock, to the server's clock."""
        return monotonic_s * 1000 + self._clock_offset_ms

    async def read_clock(self) -> None:
        """Read the server's clock again. Raises LinkLost, ResponseError."""
        self._set_clock(await self.link.server_time_ms())

    @property
    def clock_age_s(self) -> float:
        """Seconds since the server's clock was read."""
        return asyncio.get_running_loop().time() - self._clock_read_s

    def _set_clock(self, server_ms: int) -> None:
        self._clock_read_s = asyncio.get_running_loop().time()
        self._clock_offset_ms = server_ms - self._clock_read_s * 1000

    async def wait_lost(self) -> str:
        """Wait until the first of the links has broken and return the reason."""
        waits = [asyncio.ensure_future(one.wait_lost()) for one in self._connections]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    async def close(self) -> None:
        """Close every link, whatever its state."""
        await self.waits.close()
        await asyncio.gather(*(one.close() for one in self._connections), return_exceptions=True)
