"""Stop signals to the supervising process: the first asks for an orderly stop, a later one kills everything."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from orcastream.telemetry.leaving import stop_signals

KILLED = 130
"""The exit code after a second signal."""
_ECHO_S = 0.5
"""A signal this soon after the first repeats it: `timeout` signals its child and then the child's group, and a terminal
signals the whole group, whose members may pass it on."""


class StopSignals:
    """Handlers for the stop signals, installed in the running loop."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.kill = asyncio.Event()
        self._stopped_at = 0.0
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if not self.stop.is_set():
            self._stopped_at = time.monotonic()
            self.stop.set()
        elif time.monotonic() - self._stopped_at > _ECHO_S:
            self.kill.set()


async def stopped_or_killed(
    stopping: Coroutine[Any, Any, None], kill: Callable[[], None], signals: StopSignals
) -> bool:
    """Stop in order, or call `kill` if another signal arrives meanwhile; return whether the stop was in order."""
    stopped = asyncio.create_task(stopping)
    killing = asyncio.create_task(signals.kill.wait())
    await asyncio.wait((stopped, killing), return_when=asyncio.FIRST_COMPLETED)
    in_order = stopped.done()
    if not in_order:
        kill()
    await stopped
    killing.cancel()
    return in_order
