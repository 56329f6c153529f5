"""A collector for tests: it receives traces, metrics and logs over OTLP/HTTP and exposes them as plain values."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.patience import PATIENCE_S
from tests.telemetry.otlp_server import OtlpServer

T = TypeVar("T")

KINDS = {number: name.removeprefix("SPAN_KIND_") for name, number in trace_pb2.Span.SpanKind.items()}
STATUSES = {number: name.removeprefix("STATUS_CODE_") for name, number in trace_pb2.Status.StatusCode.items()}


@dataclass(frozen=True)
class ReceivedEvent:
    """A timed event of a span."""

    name: str
    time_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span with its ids in hex; `parent_id` is empty for a root, `links` are pairs of trace id and span id."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    events: list[ReceivedEvent]
    status: str
    service: str
    resource: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ReceivedPoint:
    """A data point: `value` is a number, for a histogram its count."""

    name: str
    unit: str
    kind: str
    attributes: dict[str, Any]
    value: float
    service: str
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class ReceivedLog:
    """A log record."""

    body: str
    severity: str
    trace_id: str
    attributes: dict[str, Any]


class OtlpReceiver(OtlpServer):
    """`with OtlpReceiver() as receiver:` listens on `receiver.url` until the end of the block."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.points: list[ReceivedPoint] = []
        self.logs: list[ReceivedLog] = []
        self._changed = threading.Condition()
        super().__init__(self._take)

    def environment(self, **more: str) -> dict[str, str]:
        """Return variables for a process that reports here promptly, with all its traces, over HTTP."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            **more,
        }

    def wait_for(self, found: Callable[["OtlpReceiver"], T], timeout_s: float = PATIENCE_S) -> T:
        """Return the result of `found` once true. Raises AssertionError with the received spans if it never is."""
        give_up = time.monotonic() + timeout_s
        with self._changed:
            while not (value := found(self)):
                left_s = give_up - time.monotonic()
                if left_s <= 0:
                    spans = "\n".join(map(str, self.spans))
                    raise AssertionError(f"not received within {timeout_s} s; {len(self.points)} points and\n{spans}")
                self._changed.wait(left_s)
            return value

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return spans whose name is, or begins with, `name`."""
        return [span for span in self.spans if span.name == name or span.name.startswith(f"{name} ")]

    def span(self, trace_id: str, span_id: str) -> ReceivedSpan | None:
        """Return the span with these ids, once it has arrived."""
        return next((span for span in self.spans if (span.trace_id, span.span_id) == (trace_id, span_id)), None)

    def _take(self, path: str, body: bytes) -> int:
        with self._changed:
            if path == "/v1/traces":
                self.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            elif path == "/v1/metrics":
                self.points.extend(_points(ExportMetricsServiceRequest.FromString(body)))
            elif path == "/v1/logs":
                self.logs.extend(_logs(ExportLogsServiceRequest.FromString(body)))
            self._changed.notify_all()
        return 200


def _spans(request: ExportTraceServiceRequest) -> Iterable[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield ReceivedSpan(
                name=span.name,
                kind=KINDS[span.kind],
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
                attributes=_attributes(span.attributes),
                links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                events=[
                    ReceivedEvent(event.name, event.time_unix_nano, _attributes(event.attributes))
                    for event in span.events
                ],
                status=STATUSES[span.status.code],
                service=str(resource.get("service.name", "")),
                resource=resource,
            )


def _points(request: ExportMetricsServiceRequest) -> Iterable[ReceivedPoint]:
    for group in request.resource_metrics:
        service = str(_attributes(group.resource.attributes).get("service.name", ""))
        for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
            kind = str(metric.WhichOneof("data"))
            for point in getattr(metric, kind).data_points:
                histogram = kind == "histogram"
                value = point.count if histogram else getattr(point, point.WhichOneof("value"))
                yield ReceivedPoint(
                    name=metric.name,
                    unit=metric.unit,
                    kind=kind,
                    attributes=_attributes(point.attributes),
                    value=value,
                    service=service,
                    bounds=tuple(point.explicit_bounds) if histogram else (),
                )


def _logs(request: ExportLogsServiceRequest) -> Iterable[ReceivedLog]:
    for group in request.resource_logs:
        for record in (record for scope in group.scope_logs for record in scope.log_records):
            yield ReceivedLog(
                str(_value(record.body)), record.severity_text, record.trace_id.hex(), _attributes(record.attributes)
            )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
