"""How long to wait before a program that died is started again."""

from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Doubles from `first_s` to `longest_s` while a program keeps dying within `steady_s` of its start."""

    first_s: float = 0.5
    longest_s: float = 30.0
    steady_s: float = 60.0
    _next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._next_s = self.first_s

    def after(self, lived_s: float) -> float:
        """The pause in seconds after a life of `lived_s` seconds."""
        if lived_s >= self.steady_s:
            self._next_s = self.first_s
        pause_s = self._next_s
        self._next_s = min(self.longest_s, 2 * pause_s)
        return pause_s
