"""Plots of a result. Needs matplotlib."""

from pathlib import Path
from typing import Any

from orcastream.bench.figures.medians import extremes
from orcastream.bench.figures.result import Result, Variant
from orcastream.bench.figures.svg import STYLE

_COLORS = ("#1f5fa8", "#c8553d", "#4c9f70", "#e3a83d", "#7a5aa6", "#555555")
_BARS = (
    ("output tokens/s", "output_tokens_per_s", None),
    ("TTFT mean [ms]", "ttft_ms", "mean"),
    ("TBT p99 [ms]", "tbt_ms", "p99"),
    ("E2E per token p50 [ms]", "normalized_latency_ms", "p50"),
)


def draw(result: Result, path: Path) -> None:
    """Draw latency over throughput if there is a sweep, else bars by variant, in the format of the suffix."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.rc_context({**STYLE, "axes.axisbelow": True}):
        figure = _curves(pyplot, result) if result.curves() else _bars(pyplot, result)
        figure.suptitle(f"{result.workload['name']}, {result.model['name']}", fontsize=10)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _curves(pyplot: Any, result: Result) -> Any:
    """Draw latency over throughput: median E2E per token (Orca's figure), and time to first token."""
    figure, (normalized, ttft) = pyplot.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    for number, (name, points) in enumerate(result.curves().items()):
        color = _COLORS[number % len(_COLORS)]
        served = [point.requests_per_s for point in points]
        normalized.plot(
            served, [point.normalized_latency_p50_ms for point in points], "o-", color=color, label=name, markersize=4
        )
        ttft.plot(
            served, [point.ttft_p50_ms for point in points], "o-", color=color, label=f"{name}, p50", markersize=4
        )
        ttft.plot(
            served, [point.ttft_p99_ms for point in points], "o:", color=color, label=f"{name}, p99", markersize=3
        )
    if result.latency_limit_ms is not None:
        normalized.axhline(result.latency_limit_ms, color="#8a8a8a", linewidth=0.8, linestyle="--")
    for axes, label in ((normalized, "median E2E per output token [ms]"), (ttft, "time to first token [ms]")):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_xlabel("requests/s served")
        axes.set_ylabel(label)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _bars(pyplot: Any, result: Result) -> Any:
    """Draw medians, with a line from the lowest run to the highest."""
    measured = result.measured
    figure, panels = pyplot.subplots(1, len(_BARS), figsize=(11, 3.6), layout="constrained")
    for axes, (label, name, statistic) in zip(panels, _BARS, strict=True):
        rows = [_row(variant, name, statistic) for variant in measured]
        medians, lows, highs = zip(*rows, strict=True)
        colors = [_COLORS[number % len(_COLORS)] for number in range(len(rows))]
        errors = [
            [median - low for median, low in zip(medians, lows, strict=True)],
            [high - median for median, high in zip(medians, highs, strict=True)],
        ]
        axes.bar(range(len(rows)), medians, color=colors, yerr=errors, capsize=3, width=0.6)
        axes.set_xticks(range(len(rows)), [variant.name for variant in measured], rotation=20, ha="right", fontsize=8)
        axes.set_title(label, fontsize=10)
        axes.grid(axis="x", visible=False)
    return figure


def _row(variant: Variant, name: str, statistic: str | None) -> tuple[float, float, float]:
    """Return median, minimum and maximum; zeros if nothing was measured."""
    value, spread = variant.figures.get(name), extremes(variant.runs).get(name)
    if statistic is not None:
        value, spread = (value or {}).get(statistic), (spread or {}).get(statistic)
    if value is None or spread is None:
        return 0.0, 0.0, 0.0
    return value, spread[0], spread[1]
