"""Throughput and latency as the load grows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Point:
    """One load: requests per second or clients, what came out of it, and the latencies in milliseconds."""

    load: float
    requests_per_s: float
    output_tokens_per_s: float
    normalized_latency_p50_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float

    @classmethod
    def of(cls, load: float, figures: Mapping[str, Any]) -> "Point":
        """From the medians of a variant; a latency that nothing was measured of is infinite."""
        normalized, ttft = (figures.get(name) or {} for name in ("normalized_latency_ms", "ttft_ms"))
        return cls(
            load,
            figures["requests_per_s"],
            figures["output_tokens_per_s"],
            normalized.get("p50", float("inf")),
            ttft.get("p50", float("inf")),
            ttft.get("p99", float("inf")),
        )

    def to_json(self) -> dict[str, float | None]:
        """As plain values; None for what is infinite, which JSON does not know."""
        return {name: None if value == float("inf") else value for name, value in asdict(self).items()}


def sustained(points: Sequence[Point], limit_ms: float) -> float | None:
    """The load at which the median normalized latency passes `limit_ms`, on straight lines between the points.

    The highest load where it never does: more was not tried. None where it does at the lowest.
    """
    ranked = sorted(points, key=lambda point: point.load)
    if not ranked or ranked[0].normalized_latency_p50_ms > limit_ms:
        return None
    for before, after in pairwise(ranked):
        low, high = before.normalized_latency_p50_ms, after.normalized_latency_p50_ms
        if high > limit_ms:
            share = 0.0 if high == float("inf") else (limit_ms - low) / (high - low)
            return before.load + share * (after.load - before.load)
    return ranked[-1].load
