"""Measures how long at least one write has been under way."""

import time


class WriteClock:
    """`begin` and `end` enclose a write; overlapping writes count once."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._num_writes = 0
        self._since_s = 0.0

    def begin(self) -> None:
        """Start a write."""
        if not self._num_writes:
            self._since_s = time.monotonic()
        self._num_writes += 1

    def end(self) -> None:
        """End a write."""
        self._num_writes -= 1
        if not self._num_writes:
            self._busy_s += time.monotonic() - self._since_s

    @property
    def busy_s(self) -> float:
        """Seconds with a write under way so far."""
        return self._busy_s
