"""Who serves the model now, remembered for a moment so that not every request asks Redis."""

import asyncio
import time

from broker.presence import WorkerInfo, list_workers
from broker.redis_link import RedisLink
from schemas.keys import Keys
from schemas.model_limits import ModelLimits

_REMEMBERED_S = 1.0


class Workers:
    """The live workers of the model."""

    def __init__(self, redis: RedisLink, keys: Keys, stated: ModelLimits) -> None:
        self._redis = redis
        self._keys = keys
        self._stated = stated
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._alive: list[WorkerInfo] = []

    async def alive(self) -> list[WorkerInfo]:
        """Live workers that look into as many lanes, at most a second old; an empty answer is always fresh.

        Raises LinkLost, ResponseError.
        """
        async with self._asking:
            if not self._alive or time.monotonic() - self._asked_at > _REMEMBERED_S:
                found = await list_workers(await self._redis.get(), self._keys)
                lanes = str(self._keys.queue_lanes)
                self._alive = [one for one in found if one.alive and one.info.get("queue_lanes", "1") == lanes]
                self._asked_at = time.monotonic()
        return self._alive

    @property
    def limits(self) -> ModelLimits:
        """What the model's files state, lowered to what every live worker says of itself."""
        lengths = [self._stated.max_model_len, *self._said("max_model_len")]
        return ModelLimits(self._stated.vocab_size, min(lengths), min(self._said("max_cached_tokens"), default=None))

    def _said(self, field: str) -> list[int]:
        values = [worker.info.get(field, "") for worker in self._alive]
        return [int(value) for value in values if value.isdecimal() and int(value) > 1]
