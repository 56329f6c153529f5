"""The SDK's start and end, in separate processes, because it can be started only once per process."""

import json
import os
import queue
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


def _run(program: str, **environment: str) -> str:
    """Return what `program` prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_started_or_loaded_unless_requested() -> None:
    assert (
        _run(
            """
import sys, threading
from orcastream.telemetry.setup import start_telemetry
telemetry = start_telemetry("orcastream-gateway", "one")
assert not telemetry.on and not telemetry.traces
telemetry.shut_down()
print(threading.active_count(), [name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""
        )
        == "1 []"
    )


def test_the_resource_names_the_process_unless_the_environment_does() -> None:
    program = """
from opentelemetry import trace
from orcastream.telemetry.setup import start_telemetry
telemetry = start_telemetry("orcastream-gateway", "one")
found = trace.get_tracer_provider().resource.attributes
print(*(found.get(f"service.{name}") for name in ("name", "instance.id", "namespace")))
telemetry.shut_down()
"""
    assert _run(program, **COLLECTOR) == "orcastream-gateway one None"
    named = {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=prod,service.instance.id=two"}
    assert _run(program, **COLLECTOR, **named) == "mine two prod"


def test_grpc_without_its_package_names_the_extra() -> None:
    program = """
import sys
sys.modules["grpc"] = None
from orcastream.telemetry.setup import start_telemetry
from orcastream.telemetry.settings import UnusableTelemetry
try:
    start_telemetry("orcastream-gateway", "one")
except UnusableTelemetry as error:
    print(error)
"""
    told = _run(program, **COLLECTOR, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert told.startswith("OTEL_EXPORTER_OTLP_PROTOCOL: got 'grpc', allowed: http/protobuf")
    assert "orcastream[otlp-grpc]" in told


def test_logs_are_exported_with_their_fields_and_their_trace() -> None:
    program = """
import logging
from opentelemetry import trace
from orcastream.telemetry.logs import set_up_logging, trace_fields
from orcastream.telemetry.setup import start_telemetry
set_up_logging("info", "text")
telemetry = start_telemetry("orcastream-gateway", "one")
with trace.get_tracer("test").start_as_current_span("span") as span:
    logging.getLogger("orcastream.test").warning("something", extra={"why": "because", "count": 2})
logging.getLogger("orcastream.test").warning("about it", extra=trace_fields(span.get_span_context()))
telemetry.shut_down()
print("TRACE", trace.format_trace_id(span.get_span_context().trace_id))
"""
    shown = _run(program, OTEL_LOGS_EXPORTER="console", OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none")
    record, trace_id = shown.split('"body": "something"')[1].split("TRACE ")
    assert '"why": "because"' in record
    assert '"count": 2' in record
    assert f'"trace_id": "0x{trace_id}"' in record
    inside, about = re.findall(r'"body": "(.*?)".*?"trace_id": "0x(\w+)"', shown, re.DOTALL)
    assert (inside, about) == (("something", trace_id), ("about it", trace_id))


def test_a_span_lasts_as_long_as_it_does_when_the_clock_is_set_back() -> None:
    program = """
import gc, time, weakref
from opentelemetry import trace
from opentelemetry.sdk import trace as sdk
from orcastream.telemetry.setup import start_telemetry
telemetry = start_telemetry("orcastream-gateway", "one")
tracer = trace.get_tracer("test")
gc.disable()
with tracer.start_as_current_span("span") as span:
    given = tracer.start_span("given", start_time=1)
    hour_ago = lambda real=time.time_ns: real() - 3600 * 10**9
    time.time_ns = sdk.time_ns = hour_ago
given.end(2)
assert 0 <= span.end_time - span.start_time < 60 * 10**9, (span.start_time, span.end_time)
assert given.end_time == 2
telemetry.shut_down()
left = weakref.ref(given)
del given
print("collected", left() is None)
"""
    told = _run(program, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none")
    assert told.endswith("collected True")


def test_a_shutdown_without_threads_raises_nothing() -> None:
    program = """
import threading
from orcastream.telemetry.setup import start_telemetry
telemetry = start_telemetry("orcastream-gateway", "one")
def refused(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refused
telemetry.shut_down()
print("went on")
"""
    assert _run(program, OTEL_LOGS_EXPORTER="console") == "went on"


def test_a_log_line_that_cannot_be_formatted_raises_nothing() -> None:
    program = """
import logging
from orcastream.telemetry.setup import start_telemetry
telemetry = start_telemetry("orcastream-gateway", "one")
logging.getLogger("orcastream.test").warning("%d", "no number")
telemetry.shut_down()
print("went on")
"""
    assert _run(program, OTEL_LOGS_EXPORTER="console") == "went on"


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "schedule_delay_millis"),
        ("OTEL_PROPAGATORS", "none-such", "Propagator none-such not found"),
    ],
)
def test_sdk_errors_are_reported_with_the_variables(variable: str, value: str, complaint: str) -> None:
    program = """
from orcastream.telemetry.setup import start_telemetry
from orcastream.telemetry.settings import UnusableTelemetry
try:
    start_telemetry("orcastream-gateway", "one")
except UnusableTelemetry as error:
    print(error)
"""
    told = _run(program, **COLLECTOR, **{variable: value})
    assert variable in told
    assert complaint in told


def test_traces_are_exported_over_grpc() -> None:
    received: queue.Queue[str] = queue.Queue()

    class Traces(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
            received.put(request.resource_spans[0].scope_spans[0].spans[0].name)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Traces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        _run(
            """
from opentelemetry import trace
from orcastream.telemetry.setup import start_telemetry
telemetry = start_telemetry("orcastream-gateway", "one")
trace.get_tracer("test").start_span("over grpc").end()
telemetry.shut_down(30)
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_METRICS_EXPORTER="none",
        )
        assert received.get(timeout=PATIENCE_S) == "over grpc"
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_without_a_collector_each_signal_has_a_line(protocol: str) -> None:
    program = """
import logging, sys
sys.stderr = sys.stdout
from opentelemetry import metrics, trace
from orcastream.telemetry.logs import set_up_logging
from orcastream.telemetry.setup import start_telemetry
set_up_logging("info", "text")
telemetry = start_telemetry("orcastream-gateway", "one")
for _ in range(2):
    trace.get_tracer("test").start_span("lost").end()
    metrics.get_meter("test").create_counter("lost").add(1)
    logging.getLogger("orcastream.test").warning("lost")
    trace.get_tracer_provider().force_flush()
    metrics.get_meter_provider().force_flush()
telemetry.shut_down(30)
"""
    told = _run(program, **COLLECTOR, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    failed = [line for line in told.splitlines() if "export" in line]
    for signal in ("traces|spans", "metrics", "logs"):
        assert len([line for line in failed if re.search(rf" ({signal})\b", line)]) == 1, told
    assert len(failed) == 3, told


def test_an_overlong_line_is_exported_with_its_beginning_and_end() -> None:
    program = """
import json, logging
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from orcastream.telemetry.log_export import ExportHandler

def even(left): return odd(left - 1)
def odd(left): return even(left - 1) if left > 0 else {}["why"]

exporter, provider = InMemoryLogRecordExporter(), LoggerProvider()
provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
for content in (False, True):
    log = logging.getLogger(f"test.{content}")
    log.addHandler(ExportHandler(provider, content=content))
    try:
        even(900)
    except KeyError:
        log.exception("m" * 300_000, extra={"why": "begin" + "y" * 100_000 + "end", "path": "\\udcff"})
records = [one.log_record for one in exporter.get_finished_logs()]
print(json.dumps([{"body": one.body, **one.attributes} for one in records]))
"""
    for fields in json.loads(_run(program)):
        assert sum(len(value) for name, value in fields.items() if name != "body") < 64 * 1024, "the limit of Loki"
        assert len(fields["body"]) < 256 * 1024
        assert (fields["why"][:5], fields["why"][-3:], fields["path"]) == ("begin", "end", "\\udcff")
        told = fields["exception.stacktrace"].splitlines()
        assert (told[0], told[-1].partition(":")[0]) == ("Traceback (most recent call last):", "KeyError")
        assert any("characters left out" in line for line in told)
