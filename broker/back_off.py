"""How long to wait after a failure before trying again."""

from random import uniform


class BackOff:
    """Twice as long after each failure, up to a bound, and never the same for everybody."""

    def __init__(self, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def failed(self) -> float:
        """Seconds to wait now."""
        wait_s = self._next_s * uniform(0.5, 1)
        self._next_s = min(2 * self._next_s, self._most_s)
        return wait_s

    def succeeded(self) -> None:
        """The next failure is a first one."""
        self._next_s = self._first_s
