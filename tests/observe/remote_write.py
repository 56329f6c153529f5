"""OTLP metrics pushed to Prometheus, as by a collector's exporter `prometheusremotewrite`.

Used if no collector or no Prometheus 3 is found; Debian's build lacks the OTLP receiver. The relevant behavior is the
same: samples are pushed with their own time, and Prometheus is not told that a process is gone.
"""

import struct
import time
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import httpx
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from orcastream.telemetry.names import METRICS
from orcastream.telemetry.prometheus import prometheus_label, prometheus_name
from tests.telemetry.otlp_server import OtlpServer

_NAMES = {metric.name: prometheus_name(metric) for metric in METRICS}
_LITERAL = 60
"""Bytes in the shortest form of a literal in snappy's format."""

Sample = tuple[Mapping[str, str], float, int]
"""Labels, value, and Unix time in milliseconds."""


_ON_THE_WAY_S = 0.4
"""Two collectors, the second of which makes batches of 0.2 s, and one push from each to the next."""


class RemoteWriter(OtlpServer):
    """`with RemoteWriter(write_url) as writer:` accepts OTLP/HTTP metrics at `writer.url` and forwards them."""

    def __init__(self, write_url: str) -> None:
        self._write_url = write_url
        self.taken_bytes: list[int] = []
        """The size of each export."""
        super().__init__(self._push)

    @property
    def url(self) -> str:
        """The URL for OTEL_EXPORTER_OTLP_METRICS_ENDPOINT."""
        return f"{super().url}/v1/metrics"

    def _push(self, _: str, body: bytes) -> int:
        self.taken_bytes.append(len(body))
        time.sleep(_ON_THE_WAY_S)
        written = b"".join(map(_time_series, _samples(ExportMetricsServiceRequest.FromString(body))))
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        answer = httpx.post(self._write_url, content=_snappy(written), headers=headers, timeout=10)
        return 200 if answer.is_success else 503


def _samples(request: ExportMetricsServiceRequest) -> Iterator[Sample]:
    for group in request.resource_metrics:
        resource = _attributes(group.resource.attributes)
        own = {"job": resource["service.name"], "instance": resource["service.instance.id"]}
        for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
            for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                attributes = {prometheus_label(key): value for key, value in _attributes(point.attributes).items()}
                yield from _of_point(_NAMES[metric.name], {**own, **attributes}, point)


def _of_point(name: str, labels: Mapping[str, str], point: Any) -> Iterator[Sample]:
    at_ms = point.time_unix_nano // 1_000_000
    if not hasattr(point, "bucket_counts"):
        yield {"__name__": name, **labels}, getattr(point, point.WhichOneof("value")), at_ms
        return
    bounds = [*(f"{bound:g}" for bound in point.explicit_bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
        yield {"__name__": f"{name}_bucket", **labels, "le": bound}, count, at_ms
    yield {"__name__": f"{name}_sum", **labels}, point.sum, at_ms
    yield {"__name__": f"{name}_count", **labels}, point.count, at_ms


def _attributes(pairs: Any) -> dict[str, str]:
    def text(pair: KeyValue) -> str:
        return str(getattr(pair.value, str(pair.value.WhichOneof("value"))))

    return {pair.key: text(pair) for pair in pairs}


def _time_series(sample: Sample) -> bytes:
    """Return one `timeseries` field of prometheus.WriteRequest."""
    labels, value, at_ms = sample
    names = sorted(labels)
    fields = [_bytes_field(1, _bytes_field(1, one.encode()) + _bytes_field(2, labels[one].encode())) for one in names]
    written = b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(at_ms)
    return _bytes_field(1, b"".join(fields) + _bytes_field(2, written))


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _snappy(content: bytes) -> bytes:
    """Encode in Snappy's format without compression: the length, then literals."""
    pieces = (content[at : at + _LITERAL] for at in range(0, len(content), _LITERAL))
    return _varint(len(content)) + b"".join(bytes(((len(piece) - 1) << 2,)) + piece for piece in pieces)
