"""Timestamps of one claimed request: durations by a monotonic clock, its arrival by the server's."""

import time


class Times:
    """Timestamps of one request in this worker, in seconds of `time.monotonic()`; None: not yet.

    Only the time before the claim is a difference of clock readings, both from the server.
    """

    def __init__(self, arrived_ms: int, claimed_ms: int) -> None:
        """Arrival in the queue and claim by the server's clock, Unix time; the claim is now."""
        self.queue_s = max(0, claimed_ms - arrived_ms) / 1000
        self.claimed_s = time.monotonic()
        self.first_token_s: float | None = None
        """First token from this worker's engine."""
        self.first_logged_s: float | None = None
        """First token that this worker wrote to the reply log."""
        self.terminal_made_s: float | None = None
        self.terminal_logged_s: float | None = None
        self._epochs = 0

    def begin_epoch(self) -> float | None:
        """Start an epoch; return the time of the claim if it is the first epoch after it."""
        self._epochs += 1
        return self.claimed_s if self._epochs == 1 else None

    def token_arrived(self) -> None:
        """Record that the engine produced a token."""
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()

    def logged(self, *, tokens: bool, terminal: bool) -> bool:
        """Record a written event; return whether it carried this worker's first token."""
        now_s = time.monotonic()
        is_first = tokens and self.first_logged_s is None
        if is_first:
            self.first_logged_s = now_s
        if terminal:
            self.terminal_logged_s = now_s
        return is_first

    def since_arrival_s(self, at_s: float) -> float:
        """Return the seconds from the entry's arrival to `at_s`."""
        return self.queue_s + at_s - self.claimed_s

    def terminal_made(self) -> dict[str, float]:
        """Record that the terminal event is created now; return the timings that it carries, in milliseconds."""
        self.terminal_made_s = time.monotonic()
        timings = {"queue_ms": self.queue_s * 1000, "total_ms": self.since_arrival_s(self.terminal_made_s) * 1000}
        if self.first_token_s is not None:
            timings["prefill_ms"] = (self.first_token_s - self.claimed_s) * 1000
        return {name: round(value, 3) for name, value in timings.items()}
