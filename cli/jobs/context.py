"""The maximum length of a line's prompt and answer together."""

import time

from orcastream.broker.redis_link import RedisLink
from orcastream.gateway.workers import Workers
from orcastream.schemas.keys import Keys
from orcastream.schemas.limits import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_TOKEN_ID
from orcastream.schemas.model_limits import ModelLimits

CONTRACT = ModelLimits(MAX_TOKEN_ID + 1, MAX_PROMPT_TOKENS + MAX_OUTPUT_TOKENS)
"""Limits of an unknown model."""


class Context:
    """The limits that live workers report; without any, those in the model's files."""

    def __init__(self, redis: RedisLink, keys: Keys, stated: ModelLimits, *, patience_s: float) -> None:
        """`patience_s`: how long Redis may be unreachable."""
        self._redis = redis
        self._workers = Workers(redis, keys, CONTRACT, patience_s)
        self._stated = stated
        self._patience_s = patience_s

    async def limits(self) -> ModelLimits:
        """Return the current limits. Raises LinkLost, ResponseError."""
        await self._redis.patiently(lambda _: self._workers.alive(), time.monotonic() + self._patience_s)
        told = self._workers.limits
        return self._stated if told == CONTRACT else told
