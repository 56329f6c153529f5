"""Follows reply logs over all nodes of a cluster."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Final

from redis.exceptions import ResponseError

from orcastream.broker.errors import LinkLost
from orcastream.broker.followed import FollowedLog, Took
from orcastream.broker.node_reading import NodeReading
from orcastream.broker.router import Router
from orcastream.broker.slots import Node

_CHECK_S: Final = 0.25


class NodeReadings:
    """One reading per node that has logs, until any of them or `router` breaks."""

    def __init__(self, router: Router, name: str, took: Took) -> None:
        self._router = router
        self._name = name
        self._took = took
        self._readings: dict[Node, NodeReading] = {}
        self._tasks: dict[Node, asyncio.Task[None]] = {}
        self._places: dict[FollowedLog, Node] = {}
        self._homeless: dict[FollowedLog, None] = {}

    def follow(self, followed: FollowedLog) -> None:
        """Read a log at its current node; a log that no node serves waits until one does."""
        self.leave(followed)
        node = self._router.node_of(followed.key)
        if node is None:
            self._homeless[followed] = None
            return
        self._places[followed] = node
        if node not in self._readings:
            reading = NodeReading(self._router, node, self._name, self._took, self.follow)
            self._readings[node] = reading
            # It reads for all requests: in the context of the first, its log lines would name that one's trace.
            self._tasks[node] = asyncio.create_task(reading.run(), name=f"reply-reader-{node}", context=Context())
        self._readings[node].add(followed)

    def leave(self, followed: FollowedLog) -> None:
        """Stop reading a log."""
        self._homeless.pop(followed, None)
        node = self._places.pop(followed, None)
        if node is not None:
            self._readings[node].discard(followed)

    async def run(self, check: Callable[[], None]) -> None:
        """Read, and call `check` regularly, until something breaks. Raises LinkLost."""
        lost = asyncio.ensure_future(self._router.wait_lost())
        try:
            while not lost.done():
                check()
                await self._house()
                done, _ = await asyncio.wait(
                    [lost, *self._tasks.values()], timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        finally:
            lost.cancel()
        raise LinkLost(self._router.lost_reason)

    async def _house(self) -> None:
        """Find the nodes of logs that no node served."""
        if self._homeless:
            with suppress(LinkLost, ResponseError):
                await self._router.refresh()
            for followed in list(self._homeless):
                self.follow(followed)

    async def close(self) -> None:
        """End all readings."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
