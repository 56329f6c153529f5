"""Gauges of the Redis server itself: gathered by a gateway periodically, read when metrics are collected."""

import time
from collections.abc import Mapping

from orcastream.telemetry.instruments import Read, Values, observe
from orcastream.telemetry.names import (
    REDIS_AOF,
    REDIS_EVICTED,
    REDIS_LAG,
    REDIS_MEMORY,
    REDIS_MEMORY_LIMIT,
    REDIS_REJECTED,
    REDIS_REPLICAS,
    REDIS_SLOW,
    Metric,
)
from orcastream.telemetry.queue_gauges import FRESH_FOR_S

_OBSERVED = (
    *(REDIS_MEMORY, REDIS_MEMORY_LIMIT, REDIS_AOF, REDIS_REPLICAS),
    *(REDIS_LAG, REDIS_EVICTED, REDIS_REJECTED, REDIS_SLOW),
)


class ServerGauges:
    """Gauges of the Redis server, gathered together with the queue's state (`QueueGauges.wanted`)."""

    def __init__(self) -> None:
        self._at_s = float("-inf")
        self._values: Mapping[str, float] = {}
        for metric in _OBSERVED:
            observe(metric, self._reader(metric))

    def gathered(self, values: Mapping[Metric, float | None]) -> None:
        """Store the current values; None means unknown."""
        self._at_s = time.monotonic()
        self._values = {metric.name: value for metric, value in values.items() if value is not None}

    def _reader(self, metric: Metric) -> Read:
        def read() -> Values:
            fresh = time.monotonic() - self._at_s < FRESH_FOR_S
            return [(self._values[metric.name], {})] if fresh and metric.name in self._values else []

        return read
