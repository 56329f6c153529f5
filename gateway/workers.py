"""The workers that serve a model now, cached briefly so that not every request asks Redis."""

import asyncio
import time
from collections.abc import Sequence

from redis.exceptions import ResponseError

from orcastream.broker.presence import WorkerInfo, list_workers
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.rows import number
from orcastream.schemas.keys import Keys
from orcastream.schemas.model_limits import ModelLimits

_REMEMBERED_S = 1.0
_AGAIN_S = 0.1


class Workers:
    """The live workers of the model."""

    def __init__(self, redis: RedisLink, keys: Keys, stated: ModelLimits, patience_s: float) -> None:
        """`patience_s`: how long to wait for previously seen workers."""
        self._redis = redis
        self._keys = keys
        self._stated = stated
        self._patience_s = patience_s
        self._asking = asyncio.Lock()
        self._awaiting = asyncio.Lock()
        self._asked_at = self._missed_at = float("-inf")
        self._alive: list[WorkerInfo] = []
        self.adapters: list[str] = []
        """Those that every live worker has: any of them may claim a request. While none lives, those of before."""

    async def alive(self) -> list[WorkerInfo]:
        """Return live workers with the same number of lanes, cached for at most a second; an empty answer is always
        fresh.

        Raises LinkLost, ResponseError.
        """
        async with self._asking:
            if not self._alive or time.monotonic() - self._asked_at > _REMEMBERED_S:
                found = await list_workers(await self._redis.get(), self._keys, before=self._alive)
                lanes = str(self._keys.queue_lanes)
                alive = [one for one in found if one.alive and one.info.get("queue_lanes", "1") == lanes]
                self._asked_at = time.monotonic()
                if self._alive and not alive:
                    self._missed_at = self._asked_at
                self._alive = alive
                if alive:
                    self.adapters = _adapters_of_all(alive)
        return self._alive

    async def returned(self) -> list[WorkerInfo]:
        """As `alive`, but if there were workers before, give them a while to reappear.

        Redis may have lost their registrations, or have been away or refused writes for longer than it keeps them;
        workers register again as soon as they can. Callers wait for a single one that polls for all. Raises as `alive`,
        and ResponseError while Redis refuses writes: then nobody knows which workers live.
        """
        if alive := await self.alive():
            return alive
        async with self._awaiting:
            await self._check_writable()
            give_up_at = self._missed_at + self._patience_s
            while not (alive := await self.alive()) and time.monotonic() < give_up_at:  # noqa: ASYNC110 (Redis knows)
                await asyncio.sleep(_AGAIN_S)
        return alive

    async def _check_writable(self) -> None:
        """Raise ResponseError if a worker could not report now. Writes nothing: there is no such key."""
        try:
            await (await self._redis.get()).call("SET", self._keys.worker("-"), "", "PX", 1, "XX")
        except ResponseError:
            self._missed_at = time.monotonic()
            raise

    @property
    def limits(self) -> ModelLimits:
        """The limits of the model's files, lowered to what every live worker reports."""
        return self._stated.lowered(self._said("max_model_len"), self._said("max_cached_tokens"))

    def _said(self, field: str) -> list[int]:
        values = [number(worker.info.get(field, "")) for worker in self._alive]
        return [value for value in values if value is not None and value > 1]


def _adapters_of_all(workers: Sequence[WorkerInfo]) -> list[str]:
    first, *others = (worker.info.get("adapters", "").split(",") for worker in workers)
    return [name for name in first if name and all(name in names for names in others)]
