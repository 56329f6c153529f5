"""Ends a worker whose event loop stands still: the loop itself could not, and its requests have other workers."""

import asyncio
import logging
import os
import threading

from orcastream.telemetry.setup import FLUSH_S, Telemetry

log = logging.getLogger("orcastream.worker")

_LOOK_S = 0.5
_SAY_S = 2.0
"""How long the last log line may take: the loop may be waiting for the log's reader."""


class Watchdog(threading.Thread):
    """Exits this process with `status` if `loop` does not run for `timeout_s`, until `stop` is called.

    It counts its own looks, so the time during which the whole process was stopped does not count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, status: int, telemetry: Telemetry) -> None:
        """`telemetry` is exported before the exit, the last log line included."""
        super().__init__(name="watchdog", daemon=True)
        self._loop = loop
        self._timeout_s = timeout_s
        self._status = status
        self._telemetry = telemetry
        self._stopped = threading.Event()
        self._answered = threading.Event()

    def stop(self) -> None:
        """Stop watching; call it before the loop closes."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        """Call the loop, and wait for its answer, again and again."""
        looks = 0
        self._loop.call_soon_threadsafe(self._answered.set)
        while not self._stopped.wait(_LOOK_S):
            looks += 1
            if self._answered.is_set():
                looks = 0
                self._answered.clear()
                self._loop.call_soon_threadsafe(self._answered.set)
            elif looks * _LOOK_S > self._timeout_s:
                self._exit(looks * _LOOK_S)

    def _exit(self, seconds: float) -> None:
        saying = threading.Thread(target=self._say, args=(seconds,), daemon=True)
        try:
            saying.start()
            saying.join(_SAY_S + FLUSH_S)
        finally:  # even if no thread can be started
            os._exit(self._status)

    def _say(self, seconds: float) -> None:
        log.critical("the event loop stands still", extra={"seconds": seconds})
        self._telemetry.shut_down()
