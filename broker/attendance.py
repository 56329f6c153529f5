"""Which gateways read which replies, and which requests have lost their client: marks that all gateways see."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.scripts import ATTEND, DEPARTED, GIVE_UP, LEAVE, Arg, Command, ScriptCall
from orcastream.schemas.keys import Keys
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS

CHUNK: Final = 256
"""Replies per script call, so that no call holds the server up."""
AGAIN_MS: Final = 5000
"""Who gives a request up may die before it is done: after this anybody does it again."""


class Reading(Enum):
    """What a gateway says of one reply."""

    ACCEPTED = "accepted"
    """It is read, and this gateway accepted the request for a client whose loss cancels it."""
    READ = "read"
    """It is read. That keeps a client there, but makes none: who only looks on stands for nobody."""
    LEFT = "left"
    """It is read no more: the client's grace begins."""
    STOPPED = "stopped"
    """It is read no more because the gateway stops, which is no departure: the client has all the time there is."""
    ENDED = "ended"
    """The reply has ended."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """The marks of one gateway.

    A client counts as gone `grace_ms` after the last of its departures that any gateway saw, or `lease_ms` and
    `grace_ms` after the gateway that read for it was heard of last. All times are the server's. Calls raise LinkLost,
    Unwritable.
    """

    keys: Keys
    gateway: str
    lease_ms: int
    grace_ms: int

    async def tell(self, link: Connection, readings: Sequence[tuple[str, Reading]]) -> None:
        """Set the marks of these requests, in one write; may be repeated."""
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

    async def departed(self, link: Connection, *, for_ms: int = 0, count: int = 64) -> list[str]:
        """Requests whose client has counted as gone `for_ms` or longer: at most `count`, the longest first."""
        replies = await link.call_many([DEPARTED.call([keys.clients], [for_ms, count]) for keys in self.keys.each_lane])
        require(replies)
        return [request_id.decode(errors="replace") for ids in replies for request_id in ids][:count]

    async def give_up(self, link: Connection, request_id: str, *, expire_at_ms: int) -> bool:
        """Cancel the request, as `cancel.cancel` does; False where its client has come back meanwhile."""
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
        """The keys of requests of one lane."""
        return [self._clients(request_ids[0]), *map(self.keys.readers, request_ids)]

    def _clients(self, request_id: str) -> str:
        return self.keys.in_lane(self.keys.lane_of(request_id)).clients
