"""A clock that stands still while the whole process does."""

import threading
import time
from collections.abc import Callable


class AwakeClock:
    """Seconds for which this process was awake, from any beginning. Any thread may ask.

    Of the time between two questions at most `longest_gap_s` is counted: a process that was stopped (SIGSTOP, a paused
    container or machine) has asked nothing, so somebody has to ask more often than that while it lives.
    """

    def __init__(self, longest_gap_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_gap_s = longest_gap_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = clock()
        self._awake_s = 0.0

    def __call__(self) -> float:
        """Now. [s]"""
        with self._lock:
            now = self._clock()
            self._awake_s += min(now - self._asked_at, self._longest_gap_s)
            self._asked_at = now
            return self._awake_s
