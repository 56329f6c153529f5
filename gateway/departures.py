"""Cancels requests whose clients have gone and did not come back."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from broker.attendance import Attendance, Reading
from broker.connection import Connection
from broker.errors import BrokerError, LinkLost, Unusable
from broker.origin import find_origin
from gateway.log import LOGGER, log_event
from gateway.readers import TELLING_AGAIN_S

if TYPE_CHECKING:
    from gateway.service import Gateway

_LOOK_S = 0.5
_SLOW_S = 1.0
"""A look at Redis that takes longer met one that stood still."""
_MARGIN_S = 2 * TELLING_AGAIN_S
"""Beside the grace: until every gateway is connected again, or may write again, and has said who is there."""


class Departures:
    """Looks for requests, of whatever gateway, whose client counts as gone, and cancels them.

    While Redis is away no client can come back, so the grace stands still: nothing is cancelled before Redis has
    answered for as long as the grace and, once it was away, for as long as another gateway may take to find it again
    and still counts as alive: a client may be back there. A gateway that stops cancels nothing: stopping is not
    cancelling.
    """

    def __init__(self, gateway: "Gateway", attendance: Attendance) -> None:
        self._gateway = gateway
        self._attendance = attendance
        self._left = asyncio.Event()

    def left(self, request_id: str) -> None:
        """The last reader here has gone before the reply's end."""
        log_event("disconnected", request=request_id)
        self._left.set()

    async def keep_looking(self) -> None:
        """Cancel what is due, for ever."""
        grace_s = self._gateway.settings.disconnect_grace_s
        while True:
            try:
                await self.cancel_due()
            except (BrokerError, ResponseError) as error:
                self._gateway.readers.unsettle()
                log_event("departures not looked at", why=error)
            except Exception:
                LOGGER.exception("looking for departures failed")
            await self._until_next(grace_s)

    async def _until_next(self, grace_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), _LOOK_S)
        if self._left.is_set():
            self._left.clear()
            await asyncio.sleep(min(grace_s, _LOOK_S))

    def may_cancel(self) -> bool:
        """Whether Redis has been there for so long that who was not heard of is gone."""
        settings, readers = self._gateway.settings, self._gateway.readers
        least_s = settings.disconnect_grace_s
        if readers.was_away:
            least_s = max(least_s, settings.gateway_lease_s)
        return readers.settled_s >= least_s + _MARGIN_S

    async def cancel_due(self) -> None:
        """One look. Raises LinkLost, Unwritable, ResponseError."""
        if self._gateway.stopping or not self.may_cancel():
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        link = await self._gateway.redis.get()
        departed = await self._attendance.departed(link, for_ms=int(_MARGIN_S * 1000))
        if loop.time() - begun > _SLOW_S:
            self._gateway.readers.unsettle()
            return
        for request_id in departed:
            try:
                await self._cancel(link, request_id)
            except LinkLost:
                raise
            except (BrokerError, ResponseError) as error:
                if not isinstance(error, Unusable):  # others could not write either
                    self._gateway.readers.unsettle()
                log_event("not cancelled", request=request_id, why=error)

    async def _cancel(self, link: Connection, request_id: str) -> None:
        """What breaks off in the middle is done again a little later, by whichever gateway looks first."""
        gateway = self._gateway
        origin = await find_origin(link, gateway.keys, request_id, gateway.redis.now_ms)
        if origin is not None and origin.request is not None and origin.ref is not None:
            expire_at_ms = origin.request.deadline_ms + gateway.settings.retention_ms
            if not await self._attendance.give_up(link, request_id, expire_at_ms=expire_at_ms):
                return
            log_event("cancelled", request=request_id, why="disconnect")
            await gateway.ender.end_if_waiting(link, origin.request, origin.ref, "cancelled while it waited")
        await self._attendance.tell(link, [(request_id, Reading.ENDED)])
