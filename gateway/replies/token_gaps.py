"""The gaps between the tokens of one reply, as they arrive at the gateway."""

from collections.abc import Mapping, Sequence

from orcastream.broker.subscription import Update
from orcastream.telemetry.histograms import Counts
from orcastream.telemetry.names import Gap


class TokenGaps:
    """Counts the time from each arrival of tokens to the next. Simultaneous tokens are one arrival."""

    __slots__ = ("_by_kind", "_last_s", "_next", "_steady", "_worker")

    def __init__(self, by_kind: Mapping[Gap, Counts]) -> None:
        self._by_kind = by_kind
        self._steady = self._next = by_kind[Gap.GENERATION]
        self._last_s: float | None = None
        self._worker: str | None = None

    def took(self, updates: Sequence[Update], at_s: float) -> None:
        """Record updates that arrived at `at_s`, in seconds of the event loop's clock."""
        brought = False
        for update in updates:
            if update.runs:
                brought = True
            elif update.started is not None:
                self._began(update.started.worker)
        if brought:
            if self._last_s is not None:
                self._next.record(at_s - self._last_s)
            self._last_s, self._next = at_s, self._steady

    def _began(self, worker: str) -> None:
        """Take an epoch of `worker`; the first one seen follows no other."""
        if self._worker is not None:
            self._next = self._by_kind[Gap.RECONNECT if worker == self._worker else Gap.TAKEOVER]
        self._worker = worker
