"""Which gateways read which replies, and which requests have lost their client: marks shared by all gateways."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.scripts import ATTEND, DEPARTED, GIVE_UP, LEAVE, TRY_MARK, Arg, Command, ScriptCall
from orcastream.schemas.keys import Keys
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS

CHUNK: Final = 256
"""Replies per script call, so that no call blocks the server for long."""
AGAIN_MS: Final = 5000
"""A gateway that gives a request up may die before it is done: after this time another one repeats it."""


class Reading(Enum):
    """What a gateway reports about one reply."""

    ACCEPTED = "accepted"
    """The reply is being read, and this gateway accepted the request for a client whose loss cancels it."""
    READ = "read"
    """The reply is being read. That keeps an existing client present but creates none: an observer is not a client."""
    LEFT = "left"
    """The reply is no longer read: the client's grace period begins."""
    STOPPED = "stopped"
    """The reply is no longer read because the gateway stops. The client has not left and may return at any time."""
    ENDED = "ended"
    """The reply has ended."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """The marks of one gateway.

    A client counts as gone `grace_ms` after its last departure that any gateway saw, or `lease_ms` plus `grace_ms`
    after the last sign of life of the gateway that read for it. All times are the server's. Calls raise LinkLost,
    Unwritable.
    """

    keys: Keys
    gateway: str
    lease_ms: int
    grace_ms: int

    async def tell(self, link: Connection, readings: Sequence[tuple[str, Reading]]) -> None:
        """Set the marks of these requests, in one write; idempotent."""
        attended: dict[int, list[tuple[str, Reading]]] = {}
        for item in readings:
            if item[1] in (Reading.ACCEPTED, Reading.READ):
                attended.setdefault(self.keys.lane_of(item[0]), []).append(item)
        calls: list[Command | ScriptCall] = [
            self._attend(ours[begin : begin + CHUNK])
            for ours in attended.values()
            for begin in range(0, len(ours), CHUNK)
        ]
        for request_id, reading in readings:
            if reading is Reading.ENDED:
                calls += [
                    ("ZREM", self._clients(request_id), request_id),
                    ("HDEL", self.keys.readers(request_id), self.gateway),
                ]
            elif reading in (Reading.LEFT, Reading.STOPPED):
                grace_ms = self.grace_ms if reading is Reading.LEFT else MAX_DEADLINE_AHEAD_MS
                calls.append(LEAVE.call(self._names([request_id]), [self.gateway, grace_ms, request_id]))
        require(await link.call_many(calls))

    async def try_mark(self, link: Connection) -> None:
        """Raise if other gateways may be unable to set their marks now, even where this one has none to set."""
        names = [[keys.clients, keys.nobodys_readers] for keys in self.keys.each_lane]
        require(await link.call_many([TRY_MARK.call(pair, []) for pair in names]))

    async def departed(self, link: Connection, *, for_ms: int = 0, count: int = 64) -> list[str]:
        """Return at most `count` requests whose client has been gone for at least `for_ms`, the longest gone first."""
        replies = await link.call_many([DEPARTED.call([keys.clients], [for_ms, count]) for keys in self.keys.each_lane])
        require(replies)
        return [request_id.decode(errors="replace") for ids in replies for request_id in ids][:count]

    async def give_up(self, link: Connection, request_id: str, *, expire_at_ms: int) -> bool:
        """Cancel the request, as `cancel.cancel` does; False if its client has returned meanwhile."""
        names = [self._clients(request_id), self.keys.cancel(request_id)]
        (done,) = replies = await link.call_many([GIVE_UP.call(names, [request_id, AGAIN_MS, expire_at_ms])])
        require(replies)
        if done:
            require(await link.call_many([wake_up(self.keys, Control("cancel", request_id))]))
        return bool(done)

    def _attend(self, readings: Sequence[tuple[str, Reading]]) -> ScriptCall:
        args: list[Arg] = [self.gateway, self.lease_ms, self.grace_ms]
        for request_id, reading in readings:
            args += [request_id, int(reading is Reading.ACCEPTED)]
        return ATTEND.call(self._names([request_id for request_id, _ in readings]), args)

    def _names(self, request_ids: Sequence[str]) -> list[str]:
        """Return the keys of requests of one lane."""
        return [self._clients(request_ids[0]), *map(self.keys.readers, request_ids)]

    def _clients(self, request_id: str) -> str:
        return self.keys.in_lane(self.keys.lane_of(request_id)).clients
