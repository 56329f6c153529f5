"""Durable acceptance: requests that count as accepted only once they are on the server's disk."""

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
"""Longer than the second between disk writes of `appendfsync everysec`, and well below a link's reply timeout."""


async def check_durable(link: Link) -> None:
    """Raise InvalidRequest naming `durable` if the server cannot confirm that a write is on its disk.

    Raises LinkLost; ResponseError if the server refuses to answer at the moment, or refuses this user.
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
    """An entry, and the future that its caller awaits."""

    def __init__(self, request_id: str, entry: EntryRef) -> None:
        self.request_id = request_id
        self.entry = entry
        self.on_disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Durability:
    """Waits for entries to be on disk; for any number of them at once with one WAITAOF.

    WAITAOF delays the commands after it, so it has its own connection. It covers only writes of that connection:
    for each entry, a script writes there after the entry, once it has seen that this server knows it. So neither a
    restart nor a failover between the two connections can make it confirm another server's disk.
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
        """Call `enqueue(link)` and wait for its entry. Repeat with the same arguments after a failure.

        Raises what `enqueue` raises; with nothing enqueued, InvalidRequest as `check_durable`; LinkLost, NotOnDisk.
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
        """Close the connection; waiting callers get LinkLost."""
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
            _settle(gone, NotOnDisk("the server no longer has the entry"))
            _settle([one for one in batch if one.entry not in unknown], None)

    async def _confirm(self, batch: list[_Waiting]) -> set[EntryRef]:
        """Return the entries that the server does not know; all others are on disk."""
        places: dict[Link, list[_Waiting]] = {}
        for one in batch:
            places.setdefault(await self._link_for(one.request_id), []).append(one)
        unknown = await asyncio.gather(*(self._confirm_by(link, ours) for link, ours in places.items()))
        return set().union(*unknown)

    async def _confirm_by(self, link: Link, batch: list[_Waiting]) -> set[EntryRef]:
        # WAITAOF is sent separately: a script new to the server runs after all other commands of its write.
        calls = [CONFIRM.call([self._keys.seen(one.request_id)], [str(one.entry)]) for one in batch]
        known = await link.call_many(calls)
        for reply in known:
            if isinstance(reply, ResponseError):
                raise reply
        unknown = {one.entry for one, found in zip(batch, known, strict=True) if not found}
        if len(unknown) < len(batch):
            on_disk, _ = await link.call("WAITAOF", 1, 0, _WAIT_MS)
            if not on_disk:
                raise NotOnDisk(f"no confirmation after {_WAIT_MS} ms (with `appendfsync no` there is none)")
        return unknown

    async def _link_for(self, request_id: str) -> Link:
        """Return the link to the entry's server."""
        return await (await self._redis.get()).link_for(self._keys.seen(request_id))


def _settle(batch: list[_Waiting], error: Exception | None) -> None:
    for waiting in batch:
        if waiting.on_disk.done():  # its caller was cancelled
            continue
        if error is None:
            waiting.on_disk.set_result(None)
        else:
            waiting.on_disk.set_exception(error)
