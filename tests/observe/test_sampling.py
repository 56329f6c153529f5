"""Which traces the shipped collector keeps when it is set to keep no others."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import StatusCode, Tracer, set_span_in_context

from orcastream.telemetry.names import Attribute
from tests.observe.collector import SHIPPED, Collector
from tests.observe.programs import NOT_FOUND, STORE_PROGRAMS
from tests.telemetry.otlp_receiver import OtlpReceiver

pytestmark = [pytest.mark.server, pytest.mark.skipif(STORE_PROGRAMS is None, reason=NOT_FOUND)]

_SLOW_MS: Final = 400


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """The receiver in place of the store."""
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def tracer(receiver: OtlpReceiver, tmp_path: Path) -> Iterator[Tracer]:
    """A tracer whose spans go to the collector."""
    assert STORE_PROGRAMS is not None
    environment = {"GRAFANA_OTLP_ENDPOINT": receiver.url, "TRACES_PERCENT": "0", "TRACES_SLOW_MS": str(_SLOW_MS)}
    collector = Collector(STORE_PROGRAMS.collector, SHIPPED, tmp_path / "collector", environment=environment)
    try:
        collector.wait_ready()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
        yield provider.get_tracer("test")
        provider.shutdown()
    finally:
        collector.kill()


def _request(tracer: Tracer, name: str, *, ms: float = 1, taken_over_from: str = "", failed: bool = False) -> None:
    """Emit a gateway's span with a worker's span in it; both name the request."""
    now_ns = time.time_ns()
    root = tracer.start_span(name, start_time=now_ns)
    child = tracer.start_span(name, set_span_in_context(root), start_time=now_ns)
    if taken_over_from:
        child.set_attribute(Attribute.TAKEN_OVER_FROM, taken_over_from)
    if failed:
        child.set_status(StatusCode.ERROR)
    for span in (child, root):
        span.end(now_ns + int(ms * 1e6))


def test_failed_slow_and_taken_over_traces_are_kept(tracer: Tracer, receiver: OtlpReceiver) -> None:
    _request(tracer, "plain")
    _request(tracer, "failed", failed=True)
    _request(tracer, "slow", ms=2 * _SLOW_MS)
    _request(tracer, "taken over", taken_over_from="worker-1")
    _request(tracer, "plain")
    _request(tracer, "the last one", failed=True)
    kept = receiver.wait_for(lambda found: found.named("the last one") and found.spans)
    assert sorted(span.name for span in kept) == sorted(2 * ["failed", "slow", "taken over", "the last one"])
