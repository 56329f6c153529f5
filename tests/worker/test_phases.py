"""The children of a `process` span, built from the timestamps of an epoch."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orcastream.engine import Timeline
from orcastream.schemas.events import Ending, Terminal, Usage
from orcastream.schemas.stopping import FinishReason
from orcastream.telemetry import histograms
from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.names import DECODE_DURATION, PREFILL_DURATION, WAIT_DURATION
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.phases import Phases
from orcastream.worker.times import Times

S = 1_000_000_000


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """The exporter that collects finished spans."""
    return InMemorySpanExporter()


def phases_of(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, begin_s: float, *timelines: Timeline
) -> Phases:
    """The phases of an epoch that began at `begin_s`."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr("orcastream.worker.phases.tracer", lambda: tracer)
    return Phases(tracer.start_span("process"), 0, begin_s, timelines)


def told(span: ReadableSpan) -> tuple[str, float, float, list[tuple[str, float]]]:
    """Name, begin, end in seconds, and events."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.name, span.start_time / S, span.end_time / S, [(one.name, one.timestamp / S) for one in span.events]


def test_events_belong_to_the_phase_in_which_they_happened(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Timeline(10, 11, 13, None, [(12, 16), (13, 4), (17, 20)], [16])
    second = Timeline(10, 14, 15, None, [(15, 20)], [])
    phases = phases_of(exporter, monkeypatch, 9, first, second)
    phases.compute(20)
    assert [told(span) for span in exporter.get_finished_spans()] == [
        ("wait", 9, 11, []),
        ("prefill", 11, 13, [("chunk", 12), ("chunk", 13)]),
        ("decode", 13, 20, [("first token", 13), ("chunk", 15), ("preempted", 16), ("chunk", 17)]),
    ]
    assert phases.preemptions == 1


def test_events_of_an_earlier_epoch_are_left_out(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Timeline(10, 11, 13, None, [(13, 4), (19, 8)], [12, 18])
    phases = phases_of(exporter, monkeypatch, 15, line)
    phases.compute(20)
    assert [told(span) for span in exporter.get_finished_spans()] == [
        ("decode", 15, 20, [("preempted", 18), ("chunk", 19)])
    ]
    assert phases.preemptions == 1


def test_an_epoch_that_ends_before_its_first_token_has_no_decode(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases_of(exporter, monkeypatch, 9, Timeline(10, 11, None, None, [(12, 16)], [])).compute(14)
    phases_of(exporter, monkeypatch, 9, Timeline(10, None, None, None, [], [])).compute(14)
    assert [told(span) for span in exporter.get_finished_spans()] == [
        ("wait", 9, 11, []),
        ("prefill", 11, 14, [("chunk", 12)]),
        ("wait", 9, 14, []),
    ]


def test_engine_events_after_the_end_are_left_out(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases_of(exporter, monkeypatch, 9, Timeline(10, 11, 15, None, [(12, 16), (15, 4)], [])).compute(14)
    phases_of(exporter, monkeypatch, 9, Timeline(10, 15, None, None, [], [])).compute(14)
    assert [told(span) for span in exporter.get_finished_spans()] == [
        ("wait", 9, 11, []),
        ("prefill", 11, 14, [("chunk", 12)]),
        ("wait", 9, 14, []),
    ]


def test_metrics_agree_with_the_spans(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "_ALL", {})
    metrics = WorkerMetrics("m")
    times = Times(arrived_ms=1_000_000, claimed_ms=1_002_500)
    claimed_s = times.claimed_s
    line = Timeline(claimed_s + 1, claimed_s + 3, claimed_s + 8, None, [(claimed_s + 7, 16)], [])
    times.terminal_logged_s = claimed_s + 20
    phases_of(exporter, monkeypatch, claimed_s, line).compute(claimed_s + 20)
    terminal = Terminal((Ending(FinishReason.STOP, 5),), Usage(16, 5, 0))
    metrics.served("normal", terminal, times, [line], continued=False)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    for name, metric in (("wait", WAIT_DURATION), ("prefill", PREFILL_DURATION), ("decode", DECODE_DURATION)):
        [counts] = histogram(metric).all_counts()
        _, begin_s, end_s, _ = told(spans[name])
        assert (sum(counts.counts), counts.sum) == (1, pytest.approx(end_s - begin_s)), name


def test_the_queue_wait_uses_the_servers_clock() -> None:
    times = Times(arrived_ms=1_000_000, claimed_ms=1_002_500)
    assert times.queue_s == 2.5
    times.token_arrived()
    timings = times.terminal_made()
    assert timings["queue_ms"] == 2500
    assert timings["total_ms"] >= 2500 + timings["prefill_ms"]
    assert Times(arrived_ms=1_000_000, claimed_ms=999_999).queue_s == 0, "ids may be a producer's own"
