"""The batches: those of each tenant, and those that gateways must run."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.scripts import OPEN_BATCH
from orcastream.schemas.keys import Keys

T = TypeVar("T")


class BatchIndex:
    """The batches: bulk jobs that gateways accept and run; all gateways of a namespace share this. Times: Unix ms.

    Every call may be repeated, and raises as `Job`.
    """

    def __init__(self, redis: RedisLink, keys: Keys, *, patience_s: float) -> None:
        self._redis = redis
        self._keys = keys
        self._patience_s = patience_s

    async def open(self, batch_id: str, tenant: str, *, max_open: int) -> bool:
        """Mark a batch to be run; False if its tenant has reached its limit of open batches."""
        call = OPEN_BATCH.call([self._keys.open_batches], [batch_id, tenant, max_open])
        return bool(await self._patiently(lambda link: link.run(call.script, call.keys, call.args)))

    async def reopen(self, batch_id: str, tenant: str) -> bool:
        """Mark an accepted batch to be run, whatever its tenant's limit; False if it is marked."""
        key = self._keys.open_batches
        return bool(await self._patiently(lambda link: link.call("HSETNX", key, batch_id, tenant)))

    async def list_open(self) -> dict[str, str]:
        """Return the unfinished batches of all tenants: id → tenant."""
        flat = await self._patiently(lambda link: link.call("HGETALL", self._keys.open_batches))
        return {flat[at].decode(): flat[at + 1].decode() for at in range(0, len(flat), 2)}

    async def close(self, batch_id: str) -> None:
        """Remove a batch that has ended or is gone from the open ones."""
        await self._patiently(lambda link: link.call("HDEL", self._keys.open_batches, batch_id))

    async def add(self, batch_id: str, order: JobOrder) -> None:
        """Add a batch to its tenant's list, from which expired batches are removed."""
        key = self._keys.batches(order.tenant)
        gone_ms = order.created_ms - (order.kept_until_ms - order.created_ms)

        async def add(link: Connection) -> None:
            entered = ("ZADD", key, order.created_ms, batch_id)
            require(await link.call_many([entered, ("PEXPIREAT", key, order.kept_until_ms)]))
            await link.call("ZREMRANGEBYSCORE", key, "-inf", gone_ms)

        await self._patiently(add)

    async def has(self, batch_id: str, tenant: str) -> bool:
        """Whether a batch is in its tenant's list."""
        return await self._patiently(lambda link: link.call("ZSCORE", self._keys.batches(tenant), batch_id)) is not None

    async def list(self, tenant: str) -> list[str]:
        """Return the ids of a tenant's batches, the oldest first; some may have expired."""
        ids = await self._patiently(lambda link: link.call("ZRANGEBYSCORE", self._keys.batches(tenant), "-inf", "+inf"))
        return [batch_id.decode() for batch_id in ids]

    async def _patiently(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._redis.patiently(action, time.monotonic() + self._patience_s)
