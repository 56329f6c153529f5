"""When takeovers may begin: idle time includes time when Redis, or this process, was down."""

import asyncio

from redis.exceptions import ResponseError

from orcastream.broker.connection import time_ms
from orcastream.broker.link import Link

_FROZEN_MS = 250
"""Half of the shortest lease: a server that answers sooner was not frozen."""


class TakeoverGate:
    """Closed for one lease after the server's start, in which every owner renews, and until `not_before` (loop time);
    and again when the server refused renewals, or when leases may have expired because it was frozen or its clock was
    set forward.

    Bound to one link, the only one to the server of the request streams: a restart breaks it.
    """

    def __init__(self, link: Link, lease_ms: int, not_before: float) -> None:
        self._link = link
        self._lease_ms = lease_ms
        self._not_before = not_before
        self._start_known = False
        self._most_ahead_ms = float("inf")
        """How far the server's clock is ahead of the loop's at most, according to the last reading."""

    async def is_open(self) -> bool:
        """Whether leases may be taken over now; costs a round trip. Raises LinkLost."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        first_time = () if self._start_known else (("INFO", "server"),)
        now, *info = await self._link.call_many([("TIME",), *first_time])
        if isinstance(now, ResponseError):
            raise now
        answered = loop.time()
        for started in info:
            self._start_known = True
            # If the server's start time is not available, wait as if it were now.
            uptime_ms = 0 if isinstance(started, ResponseError) else _uptime_ms(started)
            self._close_until(answered + (self._lease_ms - uptime_ms) / 1000)
        if self._may_have_expired(time_ms(now) - answered * 1000):
            self._close_until(answered + self._lease_ms / 1000)
        self._most_ahead_ms = time_ms(now) - asked * 1000
        return answered >= self._not_before

    def _may_have_expired(self, least_ahead_ms: float) -> bool:
        """Whether idle times may have grown by more than owners, who renew four times per lease, allow for.

        `least_ahead_ms`: how far the server's clock is ahead of the loop's at least.
        """
        link, tolerable_ms = self._link, max(_FROZEN_MS, self._lease_ms / 2)
        was_frozen, renewed_nothing = link.longest_wait_s * 1000 > tolerable_ms, link.renewed_nothing
        link.longest_wait_s, link.renewed_nothing = 0.0, False
        return was_frozen or renewed_nothing or least_ahead_ms - self._most_ahead_ms > tolerable_ms

    def _close_until(self, opens: float) -> None:
        self._not_before = max(self._not_before, opens)


def _uptime_ms(info: bytes) -> int:
    """Return the server's minimum uptime: it counts whole seconds of the clock, so one may be too many."""
    for line in info.splitlines():
        name, _, value = line.partition(b":")
        if name == b"uptime_in_seconds":
            return max(int(value) - 1, 0) * 1000
    return 0
