"""Workers' rates, computed from the counters that they reported at two times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orcastream.broker.presence import WorkerInfo

_COUNTS: Final = ("iterations", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Rates:
    """A worker's rates per second; None until it has reported twice."""

    iterations: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None


class RateMeter:
    """Rates between a worker's last two reports; by the worker's own clock, so the time of reading does not matter."""

    def __init__(self) -> None:
        self._said: Mapping[str, Mapping[str, float | None]] = {}
        self._rates: dict[str, Rates] = {}

    def look(self, workers: Sequence[WorkerInfo]) -> dict[str, Rates]:
        """Return the rates of the live workers, by name."""
        alive = {worker.name: _numbers(worker.info) for worker in workers if worker.alive}
        for name, now in alive.items():
            before = self._said.get(name)
            if before is not None and before["clock_s"] != now["clock_s"]:
                self._rates[name] = _between(before, now)
        self._said = alive
        return {name: self._rates.get(name, Rates()) for name in alive}


def _between(before: Mapping[str, float | None], now: Mapping[str, float | None]) -> Rates:
    seconds = _difference(before["clock_s"], now["clock_s"])
    if seconds is None or seconds <= 0:
        return Rates()
    counts = [_difference(before[name], now[name]) for name in _COUNTS]
    return Rates(*[None if count is None else count / seconds for count in counts])


def _difference(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before


def _numbers(info: Mapping[str, str]) -> dict[str, float | None]:
    return {name: number(info.get(name, "")) for name in ("clock_s", *_COUNTS)}


def number(text: str) -> float | None:
    """Return a reported value as a number; None if it is not one, because others may write to the worker's hash."""
    try:
        return float(text)
    except ValueError:
        return None
