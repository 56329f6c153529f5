"""Who reads which reply: so that a client that comes back, on any gateway, keeps its request from being cancelled."""

import asyncio
from collections import Counter
from contextlib import suppress

from redis.exceptions import ResponseError

from broker.errors import LinkLost
from broker.link import Link
from gateway.redis_link import RedisLink
from schemas.keys import Keys

BEAT_S = 2.0
_BEAT_TTL_MS = 8_000


class Readers:
    """Readers of each reply, counted per gateway in one Redis hash per request, next to its reply log.

    A gateway that was killed cannot take its readers back; so each keeps a short-lived key of its own alive, and
    readers of a gateway without one do not count.
    """

    def __init__(self, redis: RedisLink, keys: Keys, gateway: str) -> None:
        self._redis = redis
        self._keys = keys
        self._gateway = gateway
        self._here: Counter[str] = Counter()

    async def attach(self, request_id: str, ttl_ms: int) -> None:
        """Someone reads `request_id` here. Raises LinkLost."""
        self._here[request_id] += 1
        if self._here[request_id] == 1:
            key = self._key(request_id)
            link = await self._redis.get()
            await link.call_many([("HSET", key, self._gateway, 1), ("PEXPIRE", key, max(1, ttl_ms))])

    async def detach(self, request_id: str) -> None:
        """One reader less. Raises LinkLost; then the mark stays until this gateway or the request ends."""
        self._here[request_id] -= 1
        if self._here[request_id] <= 0:
            del self._here[request_id]
            link = await self._redis.get()
            await link.call("HDEL", self._key(request_id), self._gateway)

    async def anyone(self, request_id: str) -> bool:
        """Does anybody read it, here or at another live gateway? Raises LinkLost."""
        if self._here[request_id]:
            return True
        link = await self._redis.get()
        marked = [name.decode() for name in await link.call("HKEYS", self._key(request_id))]
        others = [name for name in marked if name != self._gateway]
        if not others:
            return False
        return any(await link.call_many([("EXISTS", self._beat_key(name)) for name in others]))

    async def beat(self, link: Link) -> None:
        """Say that this gateway lives."""
        await link.call("SET", self._beat_key(self._gateway), 1, "PX", _BEAT_TTL_MS)

    async def keep_beating(self) -> None:
        """Say so for ever."""
        while True:
            with suppress(LinkLost, ResponseError):  # a missed beat is made up for by the next
                await self.beat(await self._redis.get())
            await asyncio.sleep(BEAT_S)

    def _key(self, request_id: str) -> str:
        return f"{self._keys.reply(request_id)}:readers"

    def _beat_key(self, gateway: str) -> str:
        return f"{self._keys.namespace}:gateways:{gateway}"
