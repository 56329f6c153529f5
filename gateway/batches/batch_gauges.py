"""Samples all open batches periodically for the gauges, whichever gateway runs them."""

import asyncio
from collections.abc import Callable
from typing import Final

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError
from orcastream.broker.jobs.batch_index import BatchIndex
from orcastream.broker.jobs.job import see_jobs
from orcastream.gateway.batches.batch_metrics import BatchMetrics
from orcastream.gateway.batches.batch_object import has_ended
from orcastream.gateway.batches.open_batches import OpenBatch, OpenBatchWatch
from orcastream.gateway.batches.unreadable_batches import UnreadableBatches
from orcastream.gateway.log import LOGGER, log_event
from orcastream.gateway.service import Gateway
from orcastream.telemetry.queue_gauges import INTERVAL_S

_PER_TRIP: Final = 100
"""Maximum number of batches read in one round trip, so that Redis can serve others in between."""


class BatchGauges:
    """Gauges of batches, separate from the queue's gauges so that a failure here does not blind those."""

    def __init__(
        self, gateway: Gateway, index: BatchIndex, metrics: BatchMetrics, unreadable: UnreadableBatches
    ) -> None:
        self._gateway = gateway
        self._index = index
        self._metrics = metrics
        self._unreadable = unreadable
        self._watch = OpenBatchWatch()

    async def keep(self, has_room: Callable[[], bool]) -> None:
        """Sample forever while metrics are collected; `has_room`: whether this gateway would run another batch."""
        while True:
            if self._gateway.models.default.metrics.queue.wanted:
                try:
                    await self.look(has_room=has_room())
                except (BrokerError, ResponseError) as error:
                    log_event("batches not looked at", why=error)
                except Exception:
                    LOGGER.exception("looking at batches failed")
            await asyncio.sleep(INTERVAL_S)

    async def look(self, *, has_room: bool) -> None:
        """Sample once; an unreadable batch is logged and skipped. Raises LinkLost, Unwritable, ResponseError."""
        found = await self._open()
        self._metrics.gathered(self._watch.look(found, self._gateway.redis.now_ms, has_room=has_room))

    async def _open(self) -> list[OpenBatch]:
        found = []
        ids = list(await self._index.list_open())
        keys, link = self._gateway.models.default.keys, await self._gateway.redis.get()
        for at in range(0, len(ids), _PER_TRIP):
            for batch_id, seen in (await see_jobs(link, keys, ids[at : at + _PER_TRIP])).items():
                if isinstance(seen, ValueError):
                    self._unreadable.tell(batch_id, seen)
                elif not has_ended(seen.progress):
                    found.append(OpenBatch(batch_id, *seen))
        return found
