"""Metrics of the connections to Redis: commands, round trips, breaks."""

from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.instruments import observe
from orcastream.telemetry.names import CONNECTIONS_LOST, REDIS_COMMANDS, REDIS_DURATION


class RedisMetrics:
    """An observer of links (`orcastream.broker.link.LinkObserver`). One per process, used on its asyncio loop."""

    def __init__(self) -> None:
        self._duration = histogram(REDIS_DURATION).at({})
        self._commands = 0
        self._lost = 0
        observe(REDIS_COMMANDS, lambda: [(self._commands, {})])
        observe(CONNECTIONS_LOST, lambda: [(self._lost, {})])

    def sent(self, num_commands: int) -> None:
        """Count commands written to a link."""
        self._commands += num_commands

    def answered(self, seconds: float) -> None:
        """Record that the last reply to a write came `seconds` after it."""
        self._duration.record(seconds)

    def lost(self) -> None:
        """Count a broken link; closing one does not count."""
        self._lost += 1
