"""Setup of OpenTelemetry's SDK from the standard OTEL_ variables, in the process that serves; otherwise off."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from orcastream.telemetry.names import HTTP_DURATION
from orcastream.telemetry.settings import OtelSettings, UnusableTelemetry
from orcastream.telemetry.version import own_version

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.metrics.view import View
    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry

log = logging.getLogger("orcastream.telemetry")

FLUSH_S: Final = 2.0
"""Maximum time at the end of a process for exporting what is left."""
_LEFT_OUT: Final = (
    "http.server.active_requests",
    "http.server.request.body.size",
    "http.server.response.body.size",
    "http.server.request.size",
    "http.server.response.size",
)
_OF_THE_PAST: Final = "http.server.duration"
"""The metric that `http/dup` adds. Its other attributes derive from Host, which a client can vary without limit."""


class Telemetry:
    """The export of this process's telemetry, in its own threads; does nothing if nothing is configured."""

    def __init__(self, *, traces: bool = False, registry: "CollectorRegistry | None" = None) -> None:
        self.traces = traces
        """Whether spans leave the process."""
        self.registry = registry
        """The registry behind /metrics; None if it is not served."""
        self._closings: list[Callable[[], object]] = []

    @property
    def on(self) -> bool:
        """Whether any signal is exported."""
        return bool(self._closings)

    def closing(self, close: Callable[[], object]) -> None:
        """Register `close` to be called by `shut_down`."""
        self._closings.append(close)

    def shut_down(self, timeout_s: float = FLUSH_S) -> None:
        """Export what is left, for at most `timeout_s`: an unreachable collector must not hold up a process.

        Nothing is exported if the host refuses the threads for that.
        """
        until = time.monotonic() + timeout_s
        threads = [threading.Thread(target=_quietly, args=(close,), daemon=True) for close in self._closings]
        self._closings.clear()
        with suppress(RuntimeError):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))


def start_telemetry(service: str, instance: str, *, prometheus: bool = False, log_content: bool = False) -> Telemetry:
    """Start the telemetry that OTEL_ variables and `prometheus` ask for, in this process; call it after any fork.

    `service` and `instance` are the resource's service.name and service.instance.id unless OTEL_SERVICE_NAME or
    OTEL_RESOURCE_ATTRIBUTES say otherwise; `log_content` is that of LogSettings. Raises UnusableTelemetry.
    """
    settings = OtelSettings.read()
    traces, metrics, logs = (settings.exporters(signal) for signal in ("traces", "metrics", "logs"))
    if settings.disabled and prometheus:
        log.warning("OTEL_SDK_DISABLED is true: /metrics stays empty")
    telemetry = Telemetry(traces=bool(traces), registry=_registry() if prometheus else None)
    if not (traces or metrics or logs or prometheus):
        return telemetry
    try:
        resource = _resource(service, instance)
        if traces:
            _start_traces(telemetry, settings, traces, resource, content=log_content)
        if metrics or telemetry.registry is not None:
            _start_metrics(telemetry, settings, metrics, resource)
        if logs:
            _start_logs(telemetry, settings, logs, resource, content=log_content)
    except UnusableTelemetry:
        raise
    except Exception as error:
        raise UnusableTelemetry(_refused(error)) from error
    return telemetry


def _refused(error: Exception) -> str:
    """Return the SDK's message about a value that it refuses; it seldom names the variable. Values may be secrets."""
    names = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_")))
    return f"OpenTelemetry's SDK cannot be started as the environment asks ({names}): {' '.join(str(error).split())}"


def _start_traces(
    telemetry: Telemetry, settings: OtelSettings, names: Sequence[str], resource: "Resource", *, content: bool
) -> None:
    import opentelemetry.propagate  # noqa: F401 - reads OTEL_PROPAGATORS, and refuses one that is not installed
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from orcastream.telemetry.exporters import span_exporter
    from orcastream.telemetry.span_content import WithoutContent
    from orcastream.telemetry.steady_spans import SteadySpans

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(SteadySpans())
    for name in names:
        exporter = span_exporter(name, settings)
        provider.add_span_processor(BatchSpanProcessor(exporter if content else WithoutContent(exporter)))
    trace.set_tracer_provider(provider)
    telemetry.closing(provider.shutdown)


def _start_metrics(telemetry: Telemetry, settings: OtelSettings, names: Sequence[str], resource: "Resource") -> None:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    from orcastream.telemetry.readers import exporting, shown_to_prometheus

    readers: list[MetricReader] = [exporting(name, settings) for name in names]
    if telemetry.registry is not None:
        readers.append(shown_to_prometheus(telemetry.registry))
    provider = MeterProvider(readers, resource=resource, views=_views(), shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    telemetry.closing(provider.shutdown)


def _start_logs(
    telemetry: Telemetry, settings: OtelSettings, names: Sequence[str], resource: "Resource", *, content: bool
) -> None:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    from orcastream.telemetry.exporters import log_exporter
    from orcastream.telemetry.log_export import ExportHandler

    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for name in names:
        provider.add_log_record_processor(BatchLogRecordProcessor(log_exporter(name, settings)))
    handler = ExportHandler(provider, content=content)
    logging.getLogger().addHandler(handler)
    telemetry.closing(provider.shutdown)


def _resource(service: str, instance: str) -> "Resource":
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own: Mapping[str, str] = {
        "service.name": service,
        "service.instance.id": instance,
        "service.version": own_version(),
    }
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


def _views() -> "list[View]":
    """Return views that shape the HTTP instrumentation's metrics as in names.py: wide buckets, few attributes."""
    from opentelemetry.sdk.metrics.view import DropAggregation, ExplicitBucketHistogramAggregation, View

    duration = View(
        instrument_name=HTTP_DURATION.name,
        attribute_keys={str(attribute) for attribute in HTTP_DURATION.attributes},
        aggregation=ExplicitBucketHistogramAggregation(HTTP_DURATION.buckets),
    )
    before = View(instrument_name=_OF_THE_PAST, attribute_keys={"http.method", "http.status_code"})
    return [duration, before, *(View(instrument_name=name, aggregation=DropAggregation()) for name in _LEFT_OUT)]


def _registry() -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry

    return CollectorRegistry()


def _quietly(close: Callable[[], object]) -> None:
    try:
        close()
    except Exception as error:
        log.debug("telemetry was not closed in order", extra={"why": str(error)})
