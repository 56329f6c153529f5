"""How long to wait after a failure before trying again."""

from random import uniform


class BackOff:
    """A delay that doubles after each failure, up to a bound, with jitter."""

    def __init__(self, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def failed(self) -> float:
        """Return the seconds to wait now."""
        wait_s = self._next_s * uniform(0.5, 1)
        self._next_s = min(2 * self._next_s, self._most_s)
        return wait_s

    def succeeded(self) -> None:
        """Reset: the next failure counts as a first one."""
        self._next_s = self._first_s

    def held(self, seconds: float) -> None:
        """What was opened broke after `seconds`: a success only if it held for longer than the longest delay."""
        if seconds > self._most_s:
            self.succeeded()
