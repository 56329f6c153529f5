"""A clock that stops while the whole process is stopped."""

import threading
import time
from collections.abc import Callable


class AwakeClock:
    """Seconds for which this process was awake, from an arbitrary start. Thread-safe.

    Between two calls at most `longest_gap_s` is counted: a stopped process (SIGSTOP, a paused container or machine)
    makes no calls, so a running one must call more often than that.
    """

    def __init__(self, longest_gap_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_gap_s = longest_gap_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = clock()
        self._awake_s = 0.0

    def __call__(self) -> float:
        """Return the current reading. [s]"""
        with self._lock:
            now = self._clock()
            self._awake_s += min(now - self._asked_at, self._longest_gap_s)
            self._asked_at = now
            return self._awake_s
