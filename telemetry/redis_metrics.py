"""What the connections to Redis tell: commands, round trips, breaks."""

from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.instruments import observe
from orcastream.telemetry.names import CONNECTIONS_LOST, REDIS_COMMANDS, REDIS_DURATION


class RedisMetrics:
    """Observes links (`orcastream.broker.link.LinkObserver`). One for a process, used on its asyncio loop."""

    def __init__(self) -> None:
        self._duration = histogram(REDIS_DURATION).at({})
        self._commands = 0
        self._lost = 0
        observe(REDIS_COMMANDS, lambda: [(self._commands, {})])
        observe(CONNECTIONS_LOST, lambda: [(self._lost, {})])

    def sent(self, num_commands: int) -> None:
        """Commands were written to a link."""
        self._commands += num_commands

    def answered(self, seconds: float) -> None:
        """The last reply to one write came `seconds` after it."""
        self._duration.record(seconds)

    def lost(self) -> None:
        """A link broke; one that was closed did not."""
        self._lost += 1
