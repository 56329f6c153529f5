"""Histograms as an SDK metric reader receives them."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, HistogramDataPoint, MetricReader, MetricsData
from opentelemetry.sdk.metrics.export import Histogram as SdkHistogram
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from orcastream.telemetry import histograms
from orcastream.telemetry.histograms import CountsHistograms, histogram
from orcastream.telemetry.instruments import attributes
from orcastream.telemetry.names import (
    QUEUE_WAIT,
    REFUSALS,
    REQUEST_DURATION,
    TIME_PER_OUTPUT_TOKEN,
    TOKEN_GAP,
    Attribute,
)
from orcastream.telemetry.prometheus import metrics_page
from orcastream.telemetry.readers import shown_to_prometheus

LABELS = attributes({Attribute.MODEL: "m"})


class Keeping(MetricReader):
    """Keeps the last collection."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self.last = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Release nothing."""


class Reader(CountsHistograms, Keeping):
    """Collects through the code under test."""

    def collected(self) -> tuple[list[HistogramDataPoint], AggregationTemporality]:
        """Return what is collected of QUEUE_WAIT now."""
        self.collect()
        [metric] = [
            metric
            for scope in self.last.resource_metrics[0].scope_metrics
            for metric in scope.metrics
            if metric.name == QUEUE_WAIT.name
        ]
        assert isinstance(metric.data, SdkHistogram)
        return list(metric.data.data_points), metric.data.aggregation_temporality

    def points(self) -> list[HistogramDataPoint]:
        """Return only the points."""
        return self.collected()[0]


class DeltaReader(Reader):
    """The same reader with delta temporality."""

    deltas = True


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No histograms of other tests."""
    monkeypatch.setattr(histograms, "_ALL", {})


def collecting(reader: MetricReader) -> Iterator[MetricReader]:
    """Attach `reader` to a provider with one instrument, because the SDK passes nothing on without one."""
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("test").create_observable_gauge("test", [lambda _: [Observation(1)]])
    yield reader
    provider.shutdown()


@pytest.fixture
def reader() -> Iterator[MetricReader]:
    yield from collecting(Reader())


@pytest.fixture
def deltas() -> Iterator[MetricReader]:
    yield from collecting(DeltaReader())


def test_a_value_is_counted_up_to_its_bound(reader: Reader) -> None:
    waits, bounds = histogram(QUEUE_WAIT), QUEUE_WAIT.buckets
    for value in (0.0, bounds[0], bounds[1], bounds[-1], bounds[-1] + 1):
        waits.record(value, LABELS)
    [point] = reader.points()
    assert (point.attributes, point.count, point.explicit_bounds) == (LABELS, 5, bounds)
    assert [point.bucket_counts[index] for index in (0, 1, -2, -1)] == [2, 1, 1, 1]
    assert point.sum == pytest.approx(bounds[0] + bounds[1] + 2 * bounds[-1] + 1)
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano


def test_a_prepared_series_begins_with_zero(reader: Reader) -> None:
    kept = histogram(QUEUE_WAIT).at(LABELS)
    assert [point.count for point in reader.points()] == [0]
    kept.record(1)
    histogram(QUEUE_WAIT).record(1, dict(LABELS))
    assert [point.count for point in reader.points()] == [2]


def test_deltas_cover_the_time_since_the_last_collection(deltas: Reader) -> None:
    kept = histogram(QUEUE_WAIT).at(LABELS)
    for number in (2, 0, 3):
        for _ in range(number):
            kept.record(0.5)
        [point] = deltas.points()
        assert (point.count, point.sum) == (number, pytest.approx(number * 0.5))
    assert deltas.collected()[1] is AggregationTemporality.DELTA


def test_concurrent_collections_lose_nothing(reader: Reader) -> None:
    kept, each = histogram(QUEUE_WAIT).at(LABELS), 5_000
    thread = threading.Thread(target=lambda: [kept.record(0.1) for _ in range(each)])
    thread.start()
    while thread.is_alive():
        [point] = reader.points()
        assert point.count == sum(point.bucket_counts) <= each
    thread.join()
    assert reader.points()[0].count == each


def test_prometheus_reads_them() -> None:
    registry = CollectorRegistry()
    for _ in collecting(shown_to_prometheus(registry)):
        histogram(TOKEN_GAP).at(LABELS).record(0.2)
        page, _ = metrics_page(registry, "")
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }
    stem = "orcastream_gateway_token_gap_seconds"
    assert samples[f"{stem}_bucket", "0.2"] == samples[f"{stem}_bucket", "+Inf"] == samples[f"{stem}_count", None] == 1
    assert samples[f"{stem}_bucket", "0.15"] == 0


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind of orcastream.admission.refusals: got counter, allowed: histogram"):
        histogram(REFUSALS)


def test_a_request_that_takes_its_whole_timeout_has_a_bucket() -> None:
    for metric in (QUEUE_WAIT, REQUEST_DURATION, TOKEN_GAP):
        assert metric.buckets[-1] > 600


def test_the_time_between_tokens_of_a_small_model_has_buckets() -> None:
    """The demo model needs 2 to 3 ms per token; without bounds around that, quantiles are half of the lowest one."""
    for metric in (TIME_PER_OUTPUT_TOKEN, TOKEN_GAP):
        assert len([bound for bound in metric.buckets if bound < 0.01]) >= 4
