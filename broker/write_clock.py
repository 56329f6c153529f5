"""For how long at least one write has been under way."""

import time


class WriteClock:
    """`begin` and `end` enclose a write; writes that overlap count once."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._num_writes = 0
        self._since_s = 0.0

    def begin(self) -> None:
        """A write is under way."""
        if not self._num_writes:
            self._since_s = time.monotonic()
        self._num_writes += 1

    def end(self) -> None:
        """It is not any more."""
        self._num_writes -= 1
        if not self._num_writes:
            self._busy_s += time.monotonic() - self._since_s

    @property
    def busy_s(self) -> float:
        """Seconds so far."""
        return self._busy_s
