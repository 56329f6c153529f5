"""Tracks the readers of replies at this gateway, and the task that publishes them to other gateways through Redis."""

import asyncio
from collections import Counter
from contextlib import suppress

from redis.exceptions import ResponseError

from orcastream.broker.attendance import Attendance, Reading
from orcastream.broker.back_off import BackOff
from orcastream.broker.errors import BrokerError
from orcastream.broker.redis_link import RedisLink
from orcastream.gateway.log import LOGGER, log_event

TELLING_AGAIN_S = 0.5
"""Maximum time until refused writes are repeated once Redis accepts writes again."""
BEAT_S = 2.0
"""Interval at which all marks are renewed."""
_GATHER_S = 0.02
"""Changes are collected for this long before a write: in a reply's first moments, its first token gets the cores."""
_LATE_S = 1.0
"""A renewal later than this was held up, by Redis or because this process was stopped."""


class Readers:
    """Counts the readers of each reply, and keeps the marks in Redis up to date.

    Nobody waits for a mark: one task writes changes soon, and everything again every few seconds. So the next write
    repairs whatever a broken connection or Redis lost.
    """

    def __init__(self, redis: RedisLink, attendance: Attendance) -> None:
        self._redis = redis
        self._attendance = attendance
        self._here: Counter[str] = Counter()
        self._accepted: set[str] = set()
        self._unmarked: set[str] = set()
        """Accepted requests that Redis does not know of yet."""
        self._changed: dict[str, Reading] = {}
        self._news = asyncio.Event()
        self._told_at = float("-inf")
        self._settled_at: float | None = None
        self._first_settled_at: float | None = None

    def attach(self, request_id: str, *, accepted: bool) -> None:
        """Add a reader of `request_id`; `accepted` for a client whose loss cancels the request."""
        self._here[request_id] += 1
        if accepted:
            self._accepted.add(request_id)
            self._unmarked.add(request_id)
        self._change(request_id, self._reading(request_id))

    def detach(self, request_id: str, reading: Reading) -> None:
        """Remove a reader; `reading` is the reason, which counts if it was the last one here."""
        self._here[request_id] -= 1
        if self._here[request_id] <= 0:
            del self._here[request_id]
            self._accepted.discard(request_id)
            self._change(request_id, reading)

    @property
    def settled_s(self) -> float:
        """How long Redis has answered on one connection, with every renewal in time; 0 while it does not, or while a
        renewal is late.
        """
        now = asyncio.get_running_loop().time()
        if self._settled_at is None or self._is_late(now):
            return 0.0
        return now - max(self._settled_at, self._redis.opened_at)

    @property
    def was_away(self) -> bool:
        """Whether the period of `settled_s` began after an outage of Redis, and not with this process."""
        first = self._first_settled_at
        return first is not None and max(self._settled_at or first, self._redis.opened_at) > first

    def unsettle(self) -> None:
        """Redis was away and could not be told of readers, so times start again."""
        self._settled_at = None
        self._news.set()

    async def keep_telling(self) -> None:
        """Keep the marks in Redis up to date, forever."""
        back_off = BackOff(most_s=TELLING_AGAIN_S)
        while True:
            try:
                await self._tell()
                back_off.succeeded()
            except (BrokerError, ResponseError) as error:
                self.unsettle()
                log_event("readers not marked", why=error)
                await asyncio.sleep(back_off.failed())
                continue
            except Exception:
                LOGGER.exception("marking readers failed")
                await asyncio.sleep(back_off.failed())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._told_at + BEAT_S):
                    await self._news.wait()
                    await asyncio.sleep(_GATHER_S)

    async def tell_last(self) -> None:
        """Write the remaining changes, if Redis is available."""
        with suppress(BrokerError, ResponseError):
            await self._tell()

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        link = await self._redis.get()
        self._news.clear()
        changed, self._changed = self._changed, {}
        unmarked, self._unmarked = self._unmarked, set()
        is_renewal = self._settled_at is None or loop.time() - self._told_at >= BEAT_S
        said = {**{name: self._reading(name) for name in self._here}, **changed} if is_renewal else changed
        try:
            told_anyway = (Reading.ACCEPTED, Reading.ENDED)
            first = [(name, Reading.ACCEPTED) for name in unmarked if said[name] not in told_anyway]
            await self._attendance.tell(link, [*first, *said.items()])
            if is_renewal:
                await self._attendance.try_mark(link)
        except BaseException:
            self._changed = {**changed, **self._changed}
            self._unmarked |= unmarked
            raise
        if is_renewal:
            self._renewed(loop.time())

    def _renewed(self, now: float) -> None:
        if self._settled_at is None or self._is_late(now):
            self._settled_at = now
            self._first_settled_at = self._first_settled_at or now
        self._told_at = now

    def _is_late(self, now: float) -> bool:
        return now - self._told_at > BEAT_S + _LATE_S

    def _reading(self, request_id: str) -> Reading:
        return Reading.ACCEPTED if request_id in self._accepted else Reading.READ

    def _change(self, request_id: str, reading: Reading) -> None:
        self._changed[request_id] = reading
        self._news.set()
