"""Metrics of the batches that a gateway runs, and of all open batches."""

import time
from collections.abc import Callable
from typing import Final

from orcastream.gateway.batches.batch_object import ENDS
from orcastream.gateway.batches.open_batches import OpenBatches
from orcastream.telemetry import names
from orcastream.telemetry.instruments import Read, Values, attributes, counter, observe
from orcastream.telemetry.names import Attribute
from orcastream.telemetry.queue_gauges import FRESH_FOR_S

LINE_OUTCOMES: Final = ("completed", "failed")
END_STATUSES: Final = tuple(mark.removesuffix("_ms") for mark in ENDS)


class BatchMetrics:
    """The instruments of one gateway process; counters start at 0, since the first value of a series is no increase."""

    def __init__(self) -> None:
        self._lines = counter(names.BATCH_LINES)
        self._ended = counter(names.BATCHES_ENDED)
        for outcome in LINE_OUTCOMES:
            self._lines.add(0, attributes({Attribute.OUTCOME: outcome}))
        for status in END_STATUSES:
            self._ended.add(0, attributes({Attribute.OUTCOME: status}))
        self._open = OpenBatches()
        self._at_s = float("-inf")
        observe(names.BATCHES, self._reader(_states))
        observe(names.BATCH_LINES_LEFT, self._reader(lambda found: [(found.lines_left, {})]))
        observe(names.BATCH_AGE, self._reader(lambda found: [(found.age_s, {})]))
        observe(names.BATCH_IDLE, self._reader(lambda found: [(found.idle_s, {})]))

    def line(self, *, failed: bool) -> None:
        """Count a line that got its result."""
        self._lines.add(1, attributes({Attribute.OUTCOME: LINE_OUTCOMES[failed]}))

    def ended(self, status: str) -> None:
        """Count the end of a batch that this gateway ran; call it only in the run that recorded the end."""
        self._ended.add(1, attributes({Attribute.OUTCOME: status}))

    def gathered(self, found: OpenBatches) -> None:
        """Take over the current state of the open batches."""
        self._open, self._at_s = found, time.monotonic()

    def _reader(self, values: Callable[[OpenBatches], Values]) -> Read:
        def read() -> Values:
            return values(self._open) if time.monotonic() - self._at_s < FRESH_FOR_S else []

        return read


def _states(found: OpenBatches) -> Values:
    return [(count, attributes({Attribute.STATE: state})) for state, count in found.states.items()]
