"""Reads the reply logs of one server: one link and one XREAD for all of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.change_or_loss import change_or_loss
from orcastream.broker.connection import Connection
from orcastream.broker.errors import WRONG_TYPE, LinkLost, error_code
from orcastream.broker.followed import FollowedLog, Took
from orcastream.broker.link import Link
from orcastream.broker.read_places import begin_of, places, read_from
from orcastream.broker.second_read import SecondReads, packed_read, unread
from orcastream.broker.unblock import unblock


class ServerReading:
    """Follows logs over `link`; `helper`, a second connection, wakes it up for new ones."""

    def __init__(self, helper: Connection, link: Link, took: Took, *, block_ms: int) -> None:
        self._helper = helper
        self._link = link
        self._took = took
        self._block_ms = block_ms
        self._logs: dict[bytes, list[FollowedLog]] = {}
        """By key: a log is read once for each subscription."""
        self._changed = asyncio.Event()
        self._second_reads = SecondReads()
        self._reading = False
        self._num_reads = 0
        self._waking: asyncio.Task[None] | None = None

    def follow(self, followed: FollowedLog) -> None:
        """Read a log from its read position, which may have changed, from now on."""
        ours = self._logs.setdefault(followed.key, [])
        if followed not in ours:
            ours.append(followed)
        self._changed.set()
        if self._reading and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())

    def leave(self, followed: FollowedLog) -> None:
        """Stop reading a log."""
        ours = self._logs.get(followed.key, [])
        if followed in ours:
            ours.remove(followed)
            if not ours:
                del self._logs[followed.key]

    async def run(self, check: Callable[[], None]) -> None:
        """Read, and call `check` regularly, until something breaks. Raises LinkLost, ResponseError."""
        while True:
            if not self._helper.alive:
                raise LinkLost("the reader's helper connection broke")
            check()
            following = [one for ours in self._logs.values() for one in ours if one.is_wanted]
            self._changed.clear()
            if following:
                await self._read(following)
            else:
                await self._idle()

    async def close(self) -> None:
        """Close the link."""
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.gather(self._waking, return_exceptions=True)
        await self._link.close()

    async def _read(self, following: Sequence[FollowedLog]) -> None:
        """Wait for entries, and take them."""
        asking = places(following)
        asked_from = read_from(asking)
        twice = self._second_reads.is_due(len(asking))
        self._reading, self._num_reads = True, self._num_reads + 1
        replies = await self._link.send(packed_read(asking, self._block_ms, twice=twice), 1 + twice)
        self._reading = False
        first, *second = [() if isinstance(reply, ResponseError) else reply or () for reply in replies]
        self._take_new(first, asked_from)
        more = [self._take_new(reply, asked_from) for reply in second]
        refused = [reply for reply in replies if isinstance(reply, ResponseError)]
        if refused:
            await self._refused(following, refused[0])
        elif twice:
            self._second_reads.came(len(first), more=any(more))
        else:
            self._second_reads.came_alone(len(first))

    def _take_new(self, reply: Sequence[Any], asked_from: Mapping[bytes, Sequence[bytes]]) -> bool:
        """Take what is new in the reply to a read of all logs; return whether anything is."""
        is_news = False
        for key, entries in reply:
            after = begin_of(entries, asked_from[key])
            for followed in self._logs.get(key, ()):
                if followed.is_wanted and (new := unread(entries, after, followed.last_id)):
                    self._took(followed, new)
                    is_news = True
        return is_news

    async def _idle(self) -> None:
        """Wait for a log to read, but notice a lost connection, and check those that are not read for now."""
        await change_or_loss(self._changed, self._link, self._block_ms / 1000 if self._logs else None)
        if not self._link.alive:
            raise LinkLost(self._link.lost_reason)

    async def _refused(self, following: Sequence[FollowedLog], error: ResponseError) -> None:
        """Keep one key that is not a stream from stopping all other logs."""
        if error_code(error) != WRONG_TYPE:
            raise error
        types = await self._link.call_many([("TYPE", followed.key) for followed in following])
        for followed, kind in zip(following, types, strict=True):
            if isinstance(kind, ResponseError):
                raise kind
            if kind not in (b"stream", b"none"):
                followed.unreadable("its reply log is not a stream")

    async def _wake(self) -> None:
        """Unblock the XREAD in flight until the next one, with the new logs, is under way; and so on."""
        with suppress(LinkLost):  # the reading link breaks as well, or its XREAD times out
            link = await self._helper.link_for("")
            while self._changed.is_set():
                await unblock(link, self._link.client_id, partial(self._lacks_logs, self._num_reads))

    def _lacks_logs(self, read: int) -> bool:
        """Whether that read is still under way, without a log that came after it began."""
        return self._changed.is_set() and self._num_reads == read
