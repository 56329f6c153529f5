"""Percentiles of a sample."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles in seconds, the latter interpolated between neighbors, and the size of the sample."""

    mean: float
    p50: float
    p95: float
    p99: float
    highest: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Return the spread of a sample; None if it is empty."""
        ranked = sorted(values)
        if not ranked:
            return None
        p50, p95, p99 = (percentile(ranked, share) for share in (0.5, 0.95, 0.99))
        return cls(sum(ranked) / len(ranked), p50, p95, p99, ranked[-1], len(ranked))

    def to_ms(self) -> dict[str, float]:
        """Return mean, p50, p95, p99 and maximum in milliseconds, and the count."""
        times = {name: getattr(self, name) * 1000 for name in ("mean", "p50", "p95", "p99")}
        return {**times, "max": self.highest * 1000, "count": self.count}


def percentile(ranked: Sequence[float], share: float) -> float:
    """Return the value below which that share of a sorted, non-empty sample lies."""
    place = share * (len(ranked) - 1)
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def in_ms(values: Iterable[float]) -> dict[str, float] | None:
    """Return the spread of values in seconds, in milliseconds; None for an empty sample."""
    spread = Spread.of(values)
    return None if spread is None else spread.to_ms()
