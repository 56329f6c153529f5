"""The tables of metrics in docs/telemetry.md, from names.py: `python -m orcastream.telemetry.tables`."""

from collections.abc import Iterator

from orcastream.telemetry.names import METRICS, Kind, Metric
from orcastream.telemetry.prometheus import prometheus_name


def metrics_tables() -> str:
    """Return Markdown: all metrics, then the buckets of the histograms."""
    return "\n".join((*_metrics(), "", *_buckets()))


def _metrics() -> Iterator[str]:
    yield "| metric | in Prometheus | kind | unit | attributes | service | description |"
    yield "|---|---|---|---|---|---|---|"
    for metric in METRICS:
        attributes = ", ".join(f"`{attribute}`" for attribute in metric.attributes) or "–"
        stem = prometheus_name(metric) + ("_…" if metric.kind is Kind.HISTOGRAM else "")
        services = ", ".join(metric.services)
        cells = (
            f"`{metric.name}`",
            f"`{stem}`",
            metric.kind,
            f"`{metric.unit}`",
            attributes,
            services,
            metric.description,
        )
        yield f"| {' | '.join(cells)} |"


def _buckets() -> Iterator[str]:
    yield "| histogram | upper bounds of the buckets |"
    yield "|---|---|"
    by_bounds: dict[tuple[float, ...], list[Metric]] = {}
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            by_bounds.setdefault(metric.buckets, []).append(metric)
    for bounds, metrics in by_bounds.items():
        named = ", ".join(f"`{metric.name}`" for metric in metrics)
        yield f"| {named} | {' '.join(f'{bound:g}' for bound in bounds)} |"


if __name__ == "__main__":
    print(metrics_tables())
