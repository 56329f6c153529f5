"""What the workers and the queue do, read once for all viewers of this gateway."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import BrokerError
from orcastream.broker.queue_state import read_queue_state
from orcastream.broker.rows import number
from orcastream.broker.stats import StatsStream
from orcastream.gateway.errors import ApiError
from orcastream.gateway.log import LOGGER, log_event
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.stats import WorkerStats, decode_stats

if TYPE_CHECKING:
    from orcastream.gateway.service import Gateway

READ_S: Final = 0.2
"""Interval between reads of the stream."""
_QUEUE_S: Final = 1.0
LEASE_MS: Final = 10_000
"""Workers keep reporting this long after the last watching gateway: one that restarts within it misses nothing."""
_RENEW_S: Final = 2.0
_REMEMBERED: Final = 256
"""Entries kept for viewers that come later or reconnect."""
MOST_VIEWERS: Final = 32
_MOST_UNSENT: Final = 512


@dataclass(frozen=True, slots=True)
class Told:
    """One item to show: a worker's statistics with their entry's id, or something else without an id."""

    entry_id: str
    stats: WorkerStats | None
    other: Mapping[str, Any] | None = None


class Viewer:
    """Items that one viewer has not been shown yet; for a slow viewer, the oldest are dropped."""

    def __init__(self, behind: str) -> None:
        """`behind`: entries up to this id were shown before."""
        self._behind = _order(behind)
        self._unsent: deque[Told] = deque(maxlen=_MOST_UNSENT)
        self._some = asyncio.Event()

    def add(self, told: Told) -> None:
        """Add an item to show."""
        if told.stats is None or _order(told.entry_id) > self._behind:
            self._unsent.append(told)
            self._some.set()

    async def take(self, timeout_s: float) -> list[Told]:
        """Return the pending items, waiting up to `timeout_s` for the first; empty after that."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._some.wait()
        except TimeoutError:
            return []
        self._some.clear()
        taken = list(self._unsent)
        self._unsent.clear()
        return taken


class StatsFeed:
    """Reads while anybody watches, and keeps the workers reporting by a lease; costs nothing otherwise."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._model = gateway.models.default
        self._viewers: set[Viewer] = set()
        self._recent: deque[Told] = deque(maxlen=_REMEMBERED)
        self._reading: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, behind: str) -> AsyncIterator[Viewer]:
        """Watch from after the entry id `behind`, as far as it is remembered.

        Raises ApiError 429 beyond MOST_VIEWERS.
        """
        if len(self._viewers) >= MOST_VIEWERS:
            message = f"{MOST_VIEWERS} viewers are watching already, the maximum that this gateway serves."
            raise ApiError(429, message, kind="rate_limit_error", code="console_full", headers={"Retry-After": "10"})
        viewer = Viewer(behind)
        for told in self._recent:
            viewer.add(told)
        self._viewers.add(viewer)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._reading is not None:
                self._reading.cancel()
                self._reading = None
                self._recent.clear()

    async def _read(self) -> None:
        """Read forever, starting one lease in the past: others may have watched before."""
        behind, renewed_s, asked_s = "", float("-inf"), float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            try:
                link = await self._gateway.redis.get()
                stream = StatsStream(link, self._model.keys)
                if loop.time() - renewed_s >= _RENEW_S:
                    await stream.watch(for_ms=LEASE_MS)
                    renewed_s = loop.time()
                behind = behind or f"{self._gateway.redis.now_ms - LEASE_MS}-0"
                for entry_id, payload in await stream.read(behind):
                    behind = entry_id
                    self._tell_stats(entry_id, payload)
                if loop.time() - asked_s >= _QUEUE_S:
                    asked_s = loop.time()
                    self._tell(Told("", None, await self._look(link)))
            except (BrokerError, ResponseError) as error:
                self._tell(Told("", None, {"type": "unavailable", "why": f"Redis cannot be read: {error}"}))
                await asyncio.sleep(_QUEUE_S)
            except Exception:
                LOGGER.exception("reading statistics failed")
                await asyncio.sleep(_QUEUE_S)
            await asyncio.sleep(READ_S)

    def _tell_stats(self, entry_id: str, payload: bytes) -> None:
        try:
            told = Told(entry_id, decode_stats(payload))
        except InvalidRequest as error:
            log_event("statistics cannot be read", entry=entry_id, why=error.field)
            return
        self._recent.append(told)
        self._tell(told)

    def _tell(self, told: Told) -> None:
        for viewer in self._viewers:
            viewer.add(told)

    async def _look(self, link: Connection) -> dict[str, Any]:
        """Return the state of the queue and its live workers."""
        state = await read_queue_state(link, self._model.keys)
        workers = await self._model.workers.alive()
        return {
            "type": "queue",
            "at_ms": self._gateway.redis.now_ms,
            **asdict(state),
            "workers": [{"name": one.name, "state": one.info.get("state", "serving")} for one in workers],
            "model": self._model.name,
        }


def _order(entry_id: str) -> tuple[int, int]:
    """Return the sort key of an entry id; an invalid id sorts first."""
    first, _, second = entry_id.partition("-")
    ms, sequence = number(first), number(second)
    return (0, 0) if ms is None or sequence is None else (ms, sequence)
