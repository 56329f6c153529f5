"""A collector that reads OTLP over HTTP and keeps nothing: `python -m orcastream.bench.telemetry.otlp_sink`.

It prints its port and, when its input ends, the numbers of spans and data points received.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_POLL_S = 0.05


class Sink:
    """Counters of received data."""

    def __init__(self) -> None:
        self.spans = 0
        self.points = 0
        self._lock = threading.Lock()

    def take(self, path: str, body: bytes) -> None:
        """Count one export. Raises DecodeError if it is invalid."""
        spans = points = 0
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            spans = sum(len(scope.spans) for group in traces.resource_spans for scope in group.scope_spans)
        elif path == "/v1/metrics":
            scopes = [
                scope
                for group in ExportMetricsServiceRequest.FromString(body).resource_metrics
                for scope in group.scope_metrics
            ]
            points = sum(
                len(getattr(metric, str(metric.WhichOneof("data"))).data_points)
                for scope in scopes
                for metric in scope.metrics
            )
        with self._lock:
            self.spans += spans
            self.points += points


def main() -> int:
    """Serve until the input ends."""
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sink.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()
    print(sink.spans, sink.points, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
