"""Exporters by their name in OTEL_*_EXPORTER. OTLP exporters read address, headers, timeout and TLS files directly
from the standard variables."""

import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from orcastream.telemetry.settings import OtelSettings, Signal, UnusableTelemetry

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

_MODULE: Final[dict[Signal, str]] = {
    "traces": "trace_exporter",
    "metrics": "metric_exporter",
    "logs": "_log_exporter",
}
_CLASS: Final[dict[Signal, str]] = {
    "traces": "OTLPSpanExporter",
    "metrics": "OTLPMetricExporter",
    "logs": "OTLPLogExporter",
}
_PACKAGE: Final = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
}


def span_exporter(name: str, settings: OtelSettings) -> "SpanExporter":
    """Return the exporter for traces. Raises UnusableTelemetry if its package is missing."""
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    exporter: SpanExporter = _otlp("traces", settings)
    return exporter


def metric_exporter(name: str, settings: OtelSettings) -> "MetricExporter":
    """Return the exporter for metrics. Raises UnusableTelemetry if its package is missing."""
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter()
    exporter: MetricExporter = _otlp("metrics", settings)
    return exporter


def log_exporter(name: str, settings: OtelSettings) -> "LogRecordExporter":
    """Return the exporter for logs. Raises UnusableTelemetry if its package is missing."""
    if name == "console":
        from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter

        return ConsoleLogRecordExporter()
    exporter: LogRecordExporter = _otlp("logs", settings)
    return exporter


def _otlp(signal: Signal, settings: OtelSettings) -> Any:
    protocol = settings.protocol(signal)
    try:
        module = importlib.import_module(f"{_PACKAGE[protocol]}.{_MODULE[signal]}")
    except ModuleNotFoundError as error:
        if protocol != "grpc":
            raise
        raise UnusableTelemetry(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: got 'grpc', allowed: http/protobuf, because {error.name} is not installed; "
            "to install it: pip install 'orcastream[otlp-grpc]'"
        ) from None
    # Over gRPC, all signals have one logger, whose filter takes a signal's line for a repetition of another's.
    logging.getLogger(f"{_PACKAGE['grpc']}.exporter").filters.clear()
    return getattr(module, _CLASS[signal])()
