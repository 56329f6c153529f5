"""Accepted requests whose clients have left: nobody reads them here, but this gateway remains responsible for them."""

import asyncio

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError, LinkLost, Unusable
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.redis_link import RedisLink
from orcastream.gateway.log import LOGGER, log_event


class Unattended:
    """Watches these requests until they end: queues a request again if Redis lost it."""

    def __init__(self, redis: RedisLink, loss: LossCheck, pause_s: float) -> None:
        """`pause_s`: pause between two checks of all of them."""
        self._redis = redis
        self._loss = loss
        self._pause_s = pause_s
        self._watches: dict[str, Watch] = {}

    def add(self, watch: Watch) -> None:
        """Add a request accepted here whose last reader has left before its end."""
        self._watches[watch.request_id] = watch

    async def keep_checking(self) -> None:
        """Check all of them periodically, forever."""
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                await self._check_all()
            except LinkLost as error:
                log_event("unattended requests not checked", why=error)

    async def _check_all(self) -> None:
        for request_id, watch in list(self._watches.items()):
            try:
                verdict = await self._loss.check(await self._redis.get(), watch)
            except LinkLost:
                raise
            except Unusable as error:
                log_event("given up", request=request_id, why=error)
                verdict = Verdict.UNKNOWN
            except (BrokerError, ResponseError) as error:
                log_event("not checked", request=request_id, why=error)
                continue
            except Exception:
                LOGGER.exception("checking %s failed", request_id)
                continue
            if verdict is Verdict.REQUEUED:
                log_event("enqueued again", request=request_id)
            elif verdict in (Verdict.ENDED, Verdict.UNKNOWN):
                del self._watches[request_id]
