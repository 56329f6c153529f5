"""Cancels requests whose clients have left and did not return."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from redis.exceptions import ResponseError

from orcastream.broker.attendance import Attendance, Reading
from orcastream.broker.connection import Connection
from orcastream.broker.ending import Ender
from orcastream.broker.errors import BrokerError, LinkLost, Unusable
from orcastream.broker.origin import find_origin
from orcastream.broker.redis_link import RedisLink
from orcastream.gateway.log import LOGGER, log_event
from orcastream.gateway.replies.readers import TELLING_AGAIN_S, Readers
from orcastream.gateway.shutdown import Shutdown
from orcastream.schemas.keys import Keys

_LOOK_S = 0.5
_SLOW_S = 1.0
"""A check that takes longer met a stalled Redis."""
_STEP_MS = 1000
"""A server's clock that jumps ahead by more was set, so marks have expired too early."""
_MARGIN_S = 2 * TELLING_AGAIN_S
"""Added to the grace: time for every gateway to reconnect or write again, and to report its readers."""


@dataclass(frozen=True, slots=True)
class DisconnectTimes:
    """`grace_s` for a lost client to return, `lease_s` for its gateway to report; and how long logs are kept."""

    grace_s: float
    lease_s: float
    retention_ms: int


class Disconnects:
    """Searches for requests, of any gateway, whose client counts as gone, and cancels them.

    While Redis is away no client can return, so the grace is suspended: nothing is canceled before Redis has answered
    for the grace and, after an outage, for as long as another gateway may take to reconnect and still count as alive,
    because a client may have returned there. The same applies after a server's clock is set forward. A gateway that
    stops cancels nothing: stopping is not canceling.
    """

    def __init__(
        self,
        redis: RedisLink,
        keys: Keys,
        attendance: Attendance,
        readers: Readers,
        ender: Ender,
        times: DisconnectTimes,
        shutdown: Shutdown,
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._attendance = attendance
        self._readers = readers
        self._ender = ender
        self._times = times
        self._shutdown = shutdown
        self._left = asyncio.Event()
        self._clocks: dict[str, float] = {}
        """For each server, how far its clock is ahead of this loop's. [ms]"""

    def left(self, request_id: str) -> None:
        """The last reader here has left before the reply's end."""
        log_event("disconnected", request=request_id)
        self._left.set()

    async def keep_looking(self) -> None:
        """Cancel requests that are due, forever."""
        while True:
            try:
                await self.cancel_due()
            except (BrokerError, ResponseError) as error:
                self._readers.unsettle()
                log_event("departures not looked at", why=error)
            except Exception:
                LOGGER.exception("looking for departures failed")
            await self._until_next(self._times.grace_s)

    async def _until_next(self, grace_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._left.wait()
        if self._left.is_set():
            self._left.clear()
            await asyncio.sleep(min(grace_s, _LOOK_S))

    def may_cancel(self) -> bool:
        """Whether Redis has been available for long enough that unreported clients are gone."""
        least_s = self._times.grace_s
        if self._readers.was_away:
            least_s = max(least_s, self._times.lease_s)
        return self._readers.settled_s >= least_s + _MARGIN_S

    async def cancel_due(self) -> None:
        """Check once. Raises LinkLost, Unwritable, ResponseError."""
        if self._shutdown.stopping or not self.may_cancel():
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        link = await self._redis.get()
        departed = await self._attendance.departed(link, for_ms=int(_MARGIN_S * 1000))
        if await self._clock_was_set(link) or loop.time() - begun > _SLOW_S:
            self._readers.unsettle()
            return
        for request_id in departed:
            try:
                await self._cancel(link, request_id)
            except LinkLost:
                raise
            except (BrokerError, ResponseError) as error:
                if not isinstance(error, Unusable):  # others could not write either
                    self._readers.unsettle()
                log_event("not cancelled", request=request_id, why=error)

    async def _clock_was_set(self, link: Connection) -> bool:
        """Return whether a server's clock was set forward since the last check. Raises LinkLost, ResponseError."""
        clocks: dict[str, float] = {}
        for keys in self._keys.each_lane:
            server = await link.link_for(keys.clients)
            if server.server not in clocks:
                server_ms = await server.server_time_ms()
                clocks[server.server] = server_ms - asyncio.get_running_loop().time() * 1000
        before, self._clocks = self._clocks, clocks
        return any(ahead_ms - before.get(name, ahead_ms) > _STEP_MS for name, ahead_ms in clocks.items())

    async def _cancel(self, link: Connection, request_id: str) -> None:
        """Cancel one request. If this is interrupted, the gateway that checks next repeats it."""
        origin = await find_origin(link, self._keys, request_id, self._redis.now_ms)
        if origin is not None and origin.request is not None and origin.ref is not None:
            expire_at_ms = origin.request.deadline_ms + self._times.retention_ms
            if not await self._attendance.give_up(link, request_id, expire_at_ms=expire_at_ms):
                return
            log_event("cancelled", request=request_id, why="disconnect")
            await self._ender.end_if_waiting(link, origin.request, origin.ref, "cancelled while it waited")
        await self._attendance.tell(link, [(request_id, Reading.ENDED)])
