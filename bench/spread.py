"""Percentiles of a sample."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Spread:
    """Percentiles in seconds, interpolated between neighbours, and the size of the sample."""

    p50: float
    p95: float
    p99: float
    highest: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None for an empty sample."""
        ranked = sorted(values)
        if not ranked:
            return None
        p50, p95, p99 = (percentile(ranked, share) for share in (0.5, 0.95, 0.99))
        return cls(p50, p95, p99, ranked[-1], len(ranked))

    def to_json(self) -> dict[str, float]:
        """As a plain dict, in seconds."""
        return asdict(self)


def percentile(ranked: list[float], share: float) -> float:
    """The value below which that share of a sorted, non-empty sample lies."""
    place = share * (len(ranked) - 1)
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)
