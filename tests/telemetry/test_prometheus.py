"""The names of metrics in Prometheus, compared with the exporter that writes them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as PrometheusMetric
from prometheus_client.parser import text_string_to_metric_families

from orcastream.telemetry.names import METRICS, Kind, Metric
from orcastream.telemetry.prometheus import metrics_page, prometheus_label, prometheus_name, prometheus_series


def _emit(meter: Meter, metric: Metric) -> None:
    """Emit one value of `metric` with all of its attributes."""
    attributes = {str(attribute): "x" for attribute in metric.attributes}

    def observe(_: CallbackOptions) -> list[Observation]:
        return [Observation(1, attributes)]

    match metric.kind:
        case Kind.COUNTER:
            meter.create_counter(metric.name, metric.unit).add(1, attributes)
        case Kind.HISTOGRAM:
            histogram = meter.create_histogram(
                metric.name, metric.unit, explicit_bucket_boundaries_advisory=metric.buckets
            )
            histogram.record(1, attributes)
        case Kind.GAUGE:
            meter.create_observable_gauge(metric.name, [observe], metric.unit)
        case Kind.TOTAL:
            meter.create_observable_counter(metric.name, [observe], metric.unit)


def test_names_and_labels_match_the_exporter() -> None:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry, scope_info_enabled=False, disable_target_info=True)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    for metric in METRICS:
        _emit(provider.get_meter("test"), metric)
    page, _ = metrics_page(registry, "")
    shown = {
        sample.name: set(sample.labels) - {"le"}
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }
    provider.shutdown()
    assert shown == {
        name: {prometheus_label(attribute) for attribute in metric.attributes}
        for metric in METRICS
        for name in prometheus_series(metric)
    }


def test_the_format_follows_a_readable_header() -> None:
    registry = CollectorRegistry()
    page, content_type = metrics_page(registry, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert (page, content_type.split(";")[0]) == (b"# EOF\n", "application/openmetrics-text")
    for accept in ("", "*/*", "text/plain;version=x.y", "application/openmetrics-text;version=", ";;=,"):
        assert metrics_page(registry, accept)[1].startswith(("text/plain", "application/openmetrics-text"))


def test_scrapes_do_not_overlap() -> None:
    """OpenTelemetry's collector would return everything twice to one scrape, and nothing to the other."""
    barrier, met = threading.Barrier(2), []

    class Meeting:
        def collect(self) -> list[PrometheusMetric]:
            with suppress(threading.BrokenBarrierError):
                met.append(barrier.wait(0.3))
            return []

    registry = CollectorRegistry()
    registry.register(Meeting())
    with ThreadPoolExecutor(2) as scrapes:
        assert list(scrapes.map(lambda _: metrics_page(registry, "")[0], range(2))) == [b"", b""]
    assert not met


def test_examples() -> None:
    names = {metric.name: prometheus_name(metric) for metric in METRICS}
    assert names["orcastream.tokens"] == "orcastream_tokens_total"
    assert names["orcastream.engine.phase.time"] == "orcastream_engine_phase_time_seconds_total"
    assert names["orcastream.queue.age"] == "orcastream_queue_age_seconds"
    assert names["gen_ai.server.time_to_first_token"] == "gen_ai_server_time_to_first_token_seconds"
