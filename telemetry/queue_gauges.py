"""Gauges of the queue's state in Redis: gathered by a service periodically, read when metrics are collected."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from orcastream.telemetry.instruments import Values, attributes, observe
from orcastream.telemetry.names import QUEUE_AGE, QUEUE_LENGTH, WORKERS, Attribute, Metric

INTERVAL_S = 5.0
"""How often a service gathers the state while it is wanted."""
_WANTED_FOR_S = 180.0
"""If metrics are not collected within this time, the state is not wanted."""
FRESH_FOR_S = 3 * INTERVAL_S
"""Older values are not reported: Redis is unreachable, and the state unknown."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    at_s: float
    lengths: Mapping[str, int]
    ages_s: Mapping[str, float]
    workers: Mapping[str, int]


class QueueGauges:
    """Queue length, queue age and workers of one model.

    `wanted` is true once metrics have been collected, so Redis is not queried while metrics are off; the very first
    collection finds nothing.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._wanted_at_s = float("-inf")
        self._last: _Gathered | None = None
        observe(QUEUE_LENGTH, lambda: self._by_class(QUEUE_LENGTH))
        observe(QUEUE_AGE, lambda: self._by_class(QUEUE_AGE))
        observe(WORKERS, self._by_state)

    @property
    def wanted(self) -> bool:
        """Whether metrics are being collected."""
        return time.monotonic() - self._wanted_at_s < _WANTED_FOR_S

    def gathered(self, lengths: Mapping[str, int], ages_s: Mapping[str, float], workers: Mapping[str, int]) -> None:
        """Store the number of entries and the age of the oldest unclaimed one, by class, and live workers by state."""
        self._last = _Gathered(time.monotonic(), lengths, ages_s, workers)

    def _fresh(self) -> _Gathered | None:
        last, now = self._last, time.monotonic()
        self._wanted_at_s = now
        return last if last is not None and now - last.at_s < FRESH_FOR_S else None

    def _by_class(self, metric: Metric) -> Values:
        last = self._fresh()
        if last is None:
            return []
        values: Mapping[str, float] = last.lengths if metric is QUEUE_LENGTH else last.ages_s
        return [(value, self._labels(Attribute.REQUEST_CLASS, name)) for name, value in values.items()]

    def _by_state(self) -> Values:
        last = self._fresh()
        return [] if last is None else [(n, self._labels(Attribute.STATE, name)) for name, n in last.workers.items()]

    def _labels(self, attribute: Attribute, value: str) -> Mapping[str, str]:
        return attributes({Attribute.MODEL: self._model, attribute: value})
