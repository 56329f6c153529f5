"""Throughput and latency by load."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Point:
    """One load (requests per second, or clients), its throughput, and its latencies in milliseconds."""

    load: float
    requests_per_s: float
    output_tokens_per_s: float
    normalized_latency_p50_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float

    @classmethod
    def of(cls, load: float, figures: Mapping[str, Any]) -> "Point":
        """Return the point of a variant's medians; a latency without measurements is infinite."""
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
        """Return plain values; None for infinity, which JSON lacks."""
        return {name: None if value == float("inf") else value for name, value in asdict(self).items()}


def sustained(points: Sequence[Point], limit_ms: float) -> float | None:
    """Return the load at which the median normalized latency exceeds `limit_ms`, by linear interpolation.

    If it never does, this is the highest load measured; None if it does so at the lowest load.
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
