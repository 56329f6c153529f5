"""Waits for requests in all lanes of a queue at once, since a blocking command takes keys of one slot only."""

import asyncio
from collections.abc import Callable, Sequence

from redis.exceptions import ResponseError

from orcastream.broker.arrivals import Arrivals
from orcastream.broker.claimed import Claimed
from orcastream.broker.connection import Connection
from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link
from orcastream.broker.resp import parse_error
from orcastream.broker.unblock import unblock
from orcastream.schemas.keys import CLASSES, Keys


class LaneWaits:
    """A link per lane, opened over `connection` at the first wait on it; bound to that connection.

    A lane whose node is down is not waited for until a link to it can be opened.
    """

    def __init__(self, connection: Connection, keys: Keys, name: str) -> None:
        self._connection = connection
        self._streams = [one.requests(CLASSES[0]) for one in keys.each_lane]
        self._name = name
        self._links: list[Link | None] = [None] * len(self._streams)
        self._waiting: set[int] = set()

    async def wait(self, arrivals: Sequence[Arrivals], timeout_ms: int) -> list[Claimed]:
        """Block until something arrives in any lane; `arrivals` by lane.

        Raises LinkLost; ResponseError if every lane refuses.
        """
        if len(arrivals) == 1:
            return await self._wait(0, arrivals[0], timeout_ms)
        waits = [asyncio.create_task(self._wait(lane, one, timeout_ms)) for lane, one in enumerate(arrivals)]
        try:
            left = set(waits)
            while left and not any(map(_brought, waits)):
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            await self.end(lambda: True)
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
        finally:
            for wait in waits:
                wait.cancel()
        refused = [one for one in outcomes if isinstance(one, BaseException)]
        if len(refused) == len(outcomes) or not all(isinstance(one, ResponseError) for one in refused):
            raise next((one for one in refused if not isinstance(one, ResponseError)), refused[0])
        return [one for claimed in outcomes if isinstance(claimed, list) for one in claimed]

    async def end(self, wanted: Callable[[], bool]) -> None:
        """End the waits in progress while `wanted` is true. Raises LinkLost."""
        await asyncio.gather(*(self._end(lane, wanted) for lane in sorted(self._waiting)))

    async def close(self) -> None:
        """Close the links."""
        await asyncio.gather(*(link.close() for link in self._links if link is not None), return_exceptions=True)

    async def _wait(self, lane: int, arrivals: Arrivals, timeout_ms: int) -> list[Claimed]:
        link = self._links[lane]
        if link is None:
            link = self._links[lane] = await self._open(lane)
        self._waiting.add(lane)
        try:
            return await arrivals.wait(link, timeout_ms)
        finally:
            self._waiting.discard(lane)

    async def _open(self, lane: int) -> Link:
        try:
            return await self._connection.another(self._streams[lane], name=self._name)
        except LinkLost as error:
            if len(self._streams) == 1:
                raise
            raise parse_error(f"CLUSTERDOWN lane {lane} cannot be waited for: {error}") from None

    async def _end(self, lane: int, wanted: Callable[[], bool]) -> None:
        link = self._links[lane]
        if link is not None:
            beside = await self._connection.link_for(self._streams[lane])
            await unblock(beside, link.client_id, lambda: lane in self._waiting and wanted())


def _brought(wait: "asyncio.Task[list[Claimed]]") -> bool:
    """Whether a wait yielded something, or broke."""
    if not wait.done():
        return False
    error = wait.exception()
    return bool(wait.result()) if error is None else not isinstance(error, ResponseError)
