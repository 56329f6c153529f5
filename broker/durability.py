"""Requests that count as accepted only once they are on the server's disk."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakSet

from redis.exceptions import NoPermissionError, ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import PASSING, NotOnDisk, error_code
from orcastream.broker.link import Link, LinkObserver
from orcastream.broker.queue import Enqueued
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.scripts import CONFIRM
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys

RULE: Final = "false; true with Redis 7.2 or later, or Valkey, and its append-only file (`appendonly yes`)"
_WAIT_MS: Final = 2000
"""Above the second between two writes to disk of `appendfsync everysec`, and well below a link's time for an answer."""


async def check_durable(link: Link) -> None:
    """InvalidRequest naming `durable` where the server cannot say that a write is on its disk.

    Raises LinkLost; ResponseError where it tells nobody, or not this user, now.
    """
    try:
        await link.call("WAITAOF", 1, 0, 1)
    except NoPermissionError:
        raise
    except ResponseError as error:
        if error_code(error) in PASSING:
            raise
        raise InvalidRequest("durable", True, f"{RULE}. The server says: {error}") from None


class _Waiting:
    """An entry, and who waits for it."""

    def __init__(self, request_id: str, entry: EntryRef) -> None:
        self.request_id = request_id
        self.entry = entry
        self.on_disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Durability:
    """Waits for entries to be on disk; for any number of them at once with one WAITAOF.

    WAITAOF holds up what comes behind it, so it has a connection of its own. It waits for what this connection wrote:
    a script writes there for each entry, behind the entry, once it has seen that this server knows it. So neither a
    restart nor a failover between the two connections can make it speak of another server's disk.
    """

    def __init__(self, url: str, keys: Keys, name: str, observer: LinkObserver | None = None) -> None:
        self._redis = RedisLink(url, name, observer)
        self._keys = keys
        self._checked: WeakSet[Link] = WeakSet()
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def enqueue(
        self, enqueue: Callable[[Connection], Awaitable[Enqueued]], request_id: str, link: Connection
    ) -> Enqueued:
        """`enqueue(link)`, and wait for its entry. To be repeated alike.

        Raises what `enqueue` does and, with nothing enqueued, InvalidRequest as `check_durable`; LinkLost, NotOnDisk.
        """
        own = await self._link_for(request_id)
        if own not in self._checked:
            await check_durable(own)
            self._checked.add(own)
        enqueued = await enqueue(link)
        await self.wait(request_id, enqueued.entry)
        return enqueued

    async def wait(self, request_id: str, entry: EntryRef) -> None:
        """Return once the entry is on disk. Raises NotOnDisk, LinkLost, ResponseError."""
        waiting = _Waiting(request_id, entry)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._confirm_all(), name="durability")
        await waiting.on_disk

    async def close(self) -> None:
        """End the connection; who waits gets LinkLost."""
        await self._redis.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _confirm_all(self) -> None:
        while batch := self._waiting:
            self._waiting = []
            try:
                unknown = await self._confirm(batch)
            except Exception as error:
                self._checked.clear()
                _settle(batch, error)
                continue
            gone = [one for one in batch if one.entry in unknown]
            _settle(gone, NotOnDisk("the server does not know the entry any more"))
            _settle([one for one in batch if one.entry not in unknown], None)

    async def _confirm(self, batch: list[_Waiting]) -> set[EntryRef]:
        """The entries that the server does not know; all others are on disk."""
        places: dict[Link, list[_Waiting]] = {}
        for one in batch:
            places.setdefault(await self._link_for(one.request_id), []).append(one)
        unknown = await asyncio.gather(*(self._confirm_by(link, ours) for link, ours in places.items()))
        return set().union(*unknown)

    async def _confirm_by(self, link: Link, batch: list[_Waiting]) -> set[EntryRef]:
        # WAITAOF goes by itself: a script that the server has not met yet runs after all else of its write.
        calls = [CONFIRM.call([self._keys.seen(one.request_id)], [str(one.entry)]) for one in batch]
        known = await link.call_many(calls)
        for reply in known:
            if isinstance(reply, ResponseError):
                raise reply
        unknown = {one.entry for one, found in zip(batch, known, strict=True) if not found}
        if len(unknown) < len(batch):
            on_disk, _ = await link.call("WAITAOF", 1, 0, _WAIT_MS)
            if not on_disk:
                raise NotOnDisk(f"nothing after {_WAIT_MS} ms (with `appendfsync no` it never says so)")
        return unknown

    async def _link_for(self, request_id: str) -> Link:
        """To the server of the entry."""
        return await (await self._redis.get()).link_for(self._keys.seen(request_id))


def _settle(batch: list[_Waiting], error: Exception | None) -> None:
    for waiting in batch:
        if waiting.on_disk.done():  # who waited was cancelled
            continue
        if error is None:
            waiting.on_disk.set_result(None)
        else:
            waiting.on_disk.set_exception(error)
