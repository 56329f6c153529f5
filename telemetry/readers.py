"""The metric readers of a process: the SDK's own, extended by our histograms."""

from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

from orcastream.telemetry.exporters import metric_exporter
from orcastream.telemetry.histograms import CountsHistograms
from orcastream.telemetry.settings import OtelSettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class _Exporting(CountsHistograms, PeriodicExportingMetricReader):
    pass


class _ExportingDeltas(_Exporting):
    deltas = True


def exporting(name: str, settings: OtelSettings) -> MetricReader:
    """Return a reader that exports through `name` every OTEL_METRIC_EXPORT_INTERVAL. Raises UnusableTelemetry."""
    kind = _ExportingDeltas if name == "otlp" and settings.histograms_as_deltas else _Exporting
    return kind(metric_exporter(name, settings))


def shown_to_prometheus(registry: "CollectorRegistry") -> MetricReader:
    """Return a reader that fills `registry` whenever that is read."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    class Shown(CountsHistograms, PrometheusMetricReader):
        pass

    return Shown(registry=registry, scope_info_enabled=False)
