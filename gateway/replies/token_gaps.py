"""The gaps between the tokens of one reply, as they arrive at the gateway."""

import math
from collections.abc import Mapping, Sequence

from orcastream.broker.subscription import Update
from orcastream.telemetry.histograms import Counts
from orcastream.telemetry.names import Gap


class TokenGaps:
    """Counts the time from each arrival of tokens to the next. Simultaneous tokens are one arrival.

    What counts is when this gateway read the tokens, not when a slow client took them. That it read
    nothing for a while because of a slow client is no gap.
    """

    __slots__ = ("_by_kind", "_last_s", "_next", "_steady", "_worker")

    def __init__(self, by_kind: Mapping[Gap, Counts]) -> None:
        self._by_kind = by_kind
        self._steady = self._next = by_kind[Gap.GENERATION]
        self._last_s = -math.inf
        """-inf before the first arrival, and where it is unknown."""
        self._worker: str | None = None

    def took(self, updates: Sequence[Update]) -> None:
        """Record updates, in their order."""
        for update in updates:
            if update.runs:
                self._arrived(update.arrived_s)
            elif update.started is not None:
                self._began(update.started.worker)

    def _arrived(self, at_s: float) -> None:
        if at_s > self._last_s > -math.inf:
            self._next.record(at_s - self._last_s)
        self._last_s, self._next = at_s, self._steady

    def _began(self, worker: str) -> None:
        """Take an epoch of `worker`; the first one seen follows no other."""
        if self._worker is not None:
            self._next = self._by_kind[Gap.RECONNECT if worker == self._worker else Gap.TAKEOVER]
        self._worker = worker
