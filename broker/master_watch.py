"""Links follow the sentinels: a link to a server that is no longer the master is dropped, broken or not."""

import asyncio
from contextlib import suppress

from redis.exceptions import ResponseError

from orcastream.broker.address import RedisAddress
from orcastream.broker.back_off import BackOff
from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link
from orcastream.broker.sentinel import Word, open_sentinel, word_of

LOOK_S = 0.5
"""How often the sentinels are asked."""

_Key = tuple[asyncio.AbstractEventLoop, tuple[tuple[str, int], ...], str]
_watches: dict[_Key, "MasterWatch"] = {}


class MasterWatch:
    """Queries the sentinels of one service while there are links to its master; one instance for all links of a loop.

    A master that was frozen or cut off considers itself master when it returns, until the sentinels reach it: writes
    to it are lost. So a link ends when a sentinel reports a newer failover that made another server the master.

    Sentinels that were all replaced number failovers from the start: what the newest of them says now counts, not what
    was said before.
    """

    def __init__(self, address: RedisAddress, key: _Key) -> None:
        self._address = address
        self._key = key
        self._links: dict[Link, int] = {}
        """Each link with the newest failover that the sentinels reported for its server."""
        self._words: dict[tuple[str, int], Word] = {}
        """What each sentinel that answers said last."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def follow(cls, address: RedisAddress, link: Link, word: Word) -> None:
        """Drop `link`, opened to the server of `word`, once that server is no longer the master."""
        key = (asyncio.get_running_loop(), address.hosts, address.service)
        watch = _watches.setdefault(key, cls(address, key))
        watch._links[link] = word.config_epoch
        if watch._task is None:
            watch._task = asyncio.create_task(watch._run(), name="master-watch")

    async def _run(self) -> None:
        asking = [asyncio.create_task(self._keep_asking(host, port)) for host, port in self._address.hosts]
        try:
            while self._links:
                await asyncio.sleep(LOOK_S)
                self._links = {link: epoch for link, epoch in self._links.items() if link.alive}
        finally:
            del _watches[self._key]
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _keep_asking(self, host: str, port: int) -> None:
        """Query one sentinel forever; its failures or nonsense do not affect the other sentinels."""
        back_off = BackOff(LOOK_S, most_s=5.0)
        while True:
            with suppress(LinkLost, ResponseError):
                sentinel = await open_sentinel(self._address, host, port)
                try:
                    while True:
                        self._words[host, port] = await word_of(sentinel, self._address.service)
                        self._compare(max(self._words.values()))
                        back_off.succeeded()
                        await asyncio.sleep(LOOK_S)
                finally:
                    self._words.pop((host, port), None)
                    await sentinel.close()
            await asyncio.sleep(back_off.failed())

    def _compare(self, newest: Word) -> None:
        for link, epoch in self._links.items():
            if link.server == newest.server:
                self._links[link] = newest.config_epoch
            elif newest.config_epoch > epoch and link.alive:
                link.drop(f"the sentinels name {newest.server} as the master")
