"""Gauges of the Redis server itself: gathered by a gateway periodically, read when metrics are collected."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

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
    Kind,
    Metric,
)
from orcastream.telemetry.queue_gauges import FRESH_FOR_S

_OBSERVED = (
    *(REDIS_MEMORY, REDIS_MEMORY_LIMIT, REDIS_AOF, REDIS_REPLICAS),
    *(REDIS_LAG, REDIS_EVICTED, REDIS_REJECTED, REDIS_SLOW),
)


@dataclass(slots=True)
class _Total:
    """A counter of the server, from 0 and across servers: what one had counted before the first look at it is no news.
    Where a gateway that starts again is the same series as before, Prometheus would take it for an increase.
    """

    told: float
    run_id: str | None
    sum: float = 0

    def add(self, told: float, run_id: str | None) -> None:
        if run_id != self.run_id:
            self.told, self.run_id = told, run_id
        elif told > 0:  # at 0 it was reset; the number of slow commands continues once the log has another one
            self.sum += told - self.told if told >= self.told else told
            self.told = told


class ServerGauges:
    """Gauges of the Redis server, gathered together with the queue's state (`QueueGauges.wanted`)."""

    def __init__(self) -> None:
        self._at_s = float("-inf")
        self._values: Mapping[str, float] = {}
        self._totals: dict[str, _Total] = {}
        for metric in _OBSERVED:
            observe(metric, self._reader(metric))

    def gathered(self, values: Mapping[Metric, float | None], run_id: str | None) -> None:
        """Store the current values of the server with this `run_id`; None means unknown."""
        self._at_s = time.monotonic()
        self._values = {
            metric.name: self._counted(metric, value, run_id) if metric.kind is Kind.TOTAL else value
            for metric, value in values.items()
            if value is not None
        }

    def _counted(self, metric: Metric, told: float, run_id: str | None) -> float:
        total = self._totals.setdefault(metric.name, _Total(told, run_id))
        total.add(told, run_id)
        return total.sum

    def _reader(self, metric: Metric) -> Read:
        def read() -> Values:
            fresh = time.monotonic() - self._at_s < FRESH_FOR_S
            return [(self._values[metric.name], {})] if fresh and metric.name in self._values else []

        return read
