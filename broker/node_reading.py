"""Reads the reply logs of one node of a cluster, where no command may name logs of two slots."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from redis.exceptions import ClusterDownError, ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.change_or_loss import change_or_loss
from orcastream.broker.errors import WRONG_TYPE, LinkLost, error_code
from orcastream.broker.followed import FollowedLog, Took
from orcastream.broker.link import Link
from orcastream.broker.log_pages import entries_each, xread
from orcastream.broker.router import Router
from orcastream.broker.slots import Node, Redirection

log = logging.getLogger(__name__)

BLOCK_MS: Final = 10
"""How long a read waits on the most recently active log; its worker writes to other logs at the same moments."""
_LEAST_PAUSE_S: Final = 0.002
_MOST_PAUSE_S: Final = 0.1
_PAUSE_PER_LOG_S: Final = 50e-6
"""At most 20,000 reads per second and node, however many logs there are."""
_LIVELY_S: Final = 0.5
"""A log with an event within this time is read every time."""
_PATIENCE: Final = 16
"""A silent log is read again after its silence divided by this."""
_NOTHING: Final = b"*-1\r\n"


class NodeReading:
    """Follows logs over one link: a round is one write with an XREAD per log, the last of which, for the most recently
    active log, blocks for a moment.

    `moved` is called with each log that has moved to another node.
    """

    def __init__(self, router: Router, node: Node, name: str, took: Took, moved: Callable[[FollowedLog], None]) -> None:
        self._router = router
        self._node = node
        self._name = name
        self._took = took
        self._moved = moved
        self._logs: dict[FollowedLog, None] = {}
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def add(self, followed: FollowedLog) -> None:
        """Follow a log."""
        self._logs[followed] = None
        self._changed.set()

    def discard(self, followed: FollowedLog) -> None:
        """Stop following a log."""
        self._logs.pop(followed, None)

    async def run(self) -> None:
        """Read until the link breaks. Raises LinkLost."""
        link = await self._open()
        back_off = BackOff(0.02)
        try:
            while True:
                begun = self._loop.time()
                due = self._due(begun)
                if due and not await self._look(link, due):
                    await asyncio.sleep(back_off.failed())
                    continue
                back_off.succeeded()
                await self._pause(link, begun, len(due))
        finally:
            await link.close()

    async def _open(self) -> Link:
        """Open a link, retrying forever: other nodes are read meanwhile."""
        back_off = BackOff()
        while True:
            try:
                return await self._router.another_to(self._node, name=self._name)
            except (LinkLost, ResponseError) as error:
                log.warning("reply reader: %s cannot be reached: %s", self._node, error)
            await asyncio.sleep(back_off.failed())
            await self._look_elsewhere()

    async def _look_elsewhere(self) -> None:
        """Refresh the slot map, because another node may have replaced this one."""
        try:
            await self._router.refresh()
        except (LinkLost, ResponseError):
            return
        for followed in list(self._logs):
            if self._router.node_of(followed.key) != self._node:
                self._moved(followed)

    def _due(self, now: float) -> list[FollowedLog]:
        finished = [one for one in self._logs if one.state.finished]
        for one in finished:
            del self._logs[one]
        return [one for one in self._logs if one.look_at <= now and not one.state.is_full]

    async def _look(self, link: Link, due: list[FollowedLog]) -> bool:
        """Read each of `due` once; False if the node cannot be read at the moment."""
        last: FollowedLog | None = max(due, key=attrgetter("heard_at"))
        if last is not None and self._loop.time() - last.heard_at >= _LIVELY_S:
            last = None
        others = [one for one in due if one is not last]
        sent = []
        if others:
            read = b"".join([_packed(one, b"*6\r\n" + xread(_entries(one, len(others)))) for one in others])
            sent.append((others, link.send(read, len(others), _NOTHING * len(others))))
        if last is not None:
            blocking = _packed(last, b"*8\r\n" + xread(_entries(last), BLOCK_MS))
            sent.append(([last], link.send(blocking, 1, _NOTHING)))
        return all([await self._take(ours, await replies) for ours, replies in sent])

    async def _take(self, due: Sequence[FollowedLog], replies: Sequence[Any] | None) -> bool:
        now = self._loop.time()
        sound = True
        for followed, reply in zip(due, replies or [None] * len(due), strict=True):
            if isinstance(reply, ResponseError):
                sound = await self._refused(followed, reply) and sound
            elif reply:
                followed.heard_at = now
                self._took(followed, reply[0][1])
            silent_s = now - followed.heard_at
            followed.look_at = 0 if silent_s < _LIVELY_S else now + min(silent_s / _PATIENCE, _MOST_PAUSE_S)
        return sound

    async def _refused(self, followed: FollowedLog, error: ResponseError) -> bool:
        """Read a log that is on another node from there; False if the node itself is at fault."""
        if Redirection.find(error, self._node) is None:
            if error_code(error) == WRONG_TYPE:
                followed.unreadable("its reply log is not a stream")
                return True
            if isinstance(error, ClusterDownError):
                self._router.doubt(self._node)
            log.warning("reply reader: %s: %s", self._node, error)
            return False
        try:
            count = _entries(followed)
            found = await self._router.call("XREAD", "COUNT", count, "STREAMS", followed.key, followed.last_id)
        except ResponseError as refused:
            log.warning("reply reader: %s: %s", self._node, refused)
            return False
        if found:
            followed.heard_at = self._loop.time()
            self._took(followed, found[0][1])
        is_followed = followed in self._logs  # it may have been left meanwhile
        if is_followed and self._router.node_of(followed.key) != self._node:
            self.discard(followed)
            self._moved(followed)
        return True

    async def _pause(self, link: Link, begun: float, num_read: int) -> None:
        """Wait until the next round is due; return at once if a log is new."""
        self._changed.clear()
        earliest = begun + max(_LEAST_PAUSE_S, num_read * _PAUSE_PER_LOG_S)
        due_at = min((one.look_at for one in self._logs if not one.state.is_full), default=math.inf)
        await asyncio.sleep(max(0.0, earliest - self._loop.time()))
        if due_at > self._loop.time():
            timeout_s = None if due_at == math.inf else max(0.0, due_at - self._loop.time())
            await change_or_loss(self._changed, link, timeout_s)
        if not link.alive:
            raise LinkLost(link.lost_reason)


def _packed(followed: FollowedLog, head: bytes) -> bytes:
    last_id = followed.last_id
    return b"%b%b$%d\r\n%b\r\n" % (head, followed.packed_key, len(last_id), last_id)


def _entries(followed: FollowedLog, num_logs: int = 1) -> int:
    return entries_each(num_logs, followed.entry_bytes)
