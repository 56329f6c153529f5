"""When takeovers may begin: idle time includes time when Redis, or this process, was down."""

from redis.exceptions import ResponseError

from orcastream.broker.connection import time_ms
from orcastream.broker.link import Link

_FROZEN_S = 0.25
"""Half of the shortest lease: a server that answers sooner was not frozen."""


class TakeoverGate:
    """Closed for one lease after the server's start, in which every owner renews, and until `not_before_ms`; and again
    when the server refused renewals, or was frozen long enough that leases may have expired.

    Bound to one link, the only one to the server of the request streams: a restart breaks it.
    """

    def __init__(self, link: Link, lease_ms: int, not_before_ms: int) -> None:
        self._link = link
        self._lease_ms = lease_ms
        self._not_before_ms = not_before_ms
        self._start_known = False
        self._was_frozen = self._open = False

    async def is_open(self) -> bool:
        """Whether leases may be taken over now; costs a round trip while the gate is closed. Raises LinkLost."""
        longest_s = max(_FROZEN_S, self._lease_ms / 2000)  # owners renew four times per lease
        if self._link.longest_wait_s > longest_s or self._link.renewed_nothing:
            self._open, self._was_frozen = False, True
        self._link.longest_wait_s, self._link.renewed_nothing = 0.0, False
        if not self._open:
            info, now = await self._link.call_many([("INFO", "server"), ("TIME",)])
            if isinstance(now, ResponseError):
                raise now
            now_ms = time_ms(now)
            if not self._start_known:
                self._start_known = True
                # If the server's start time is not available, wait as if it were now.
                started_ms = now_ms if isinstance(info, ResponseError) else now_ms - _uptime_ms(info)
                self._not_before_ms = max(self._not_before_ms, started_ms + self._lease_ms)
            if self._was_frozen:
                self._was_frozen, self._not_before_ms = False, max(self._not_before_ms, now_ms + self._lease_ms)
            self._open = now_ms >= self._not_before_ms
        return self._open


def _uptime_ms(info: bytes) -> int:
    """Return the server's minimum uptime: it counts whole seconds of the clock, so one may be too many."""
    for line in info.splitlines():
        name, _, value = line.partition(b":")
        if name == b"uptime_in_seconds":
            return max(int(value) - 1, 0) * 1000
    return 0
