"""Instruments as the SDK sees them."""

import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from telemetry import instruments
from telemetry.instruments import BatchedHistogram, attributes, batched_histogram, histogram, observe
from telemetry.names import CLAIMED, QUEUE_WAIT, REFUSALS, Attribute

LABELS = attributes({Attribute.MODEL: "m"})


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """Collects what is recorded through `telemetry.instruments`."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(instruments, "get_meter", provider.get_meter)
    return reader


def counts(reader: InMemoryMetricReader) -> dict[str, int]:
    """Name of each metric that is collected now, and how many values it got."""
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    return {
        metric.name: point.count
        for scope in scopes
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
    }


@pytest.mark.parametrize("number", [1, BatchedHistogram._BATCH, BatchedHistogram._BATCH + 1])
def test_a_collection_sees_what_no_batch_has_brought_yet(reader: InMemoryMetricReader, number: int) -> None:
    waits = batched_histogram(QUEUE_WAIT)
    for _ in range(number):
        waits.record(0.1, LABELS)
    assert counts(reader) == {QUEUE_WAIT.name: number}
    waits.record(0.1, LABELS)
    assert counts(reader) == {QUEUE_WAIT.name: number + 1}


def test_every_value_counts_once_while_threads_record_and_collect(reader: InMemoryMetricReader) -> None:
    waits, each = batched_histogram(QUEUE_WAIT), 5_000
    threads = [threading.Thread(target=lambda: [waits.record(0.1, LABELS) for _ in range(each)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counts(reader)
    for thread in threads:
        thread.join()
    assert counts(reader) == {QUEUE_WAIT.name: 4 * each}


def test_an_instrument_of_another_kind_is_refused() -> None:
    for make in (histogram, batched_histogram):
        with pytest.raises(ValueError, match=r"kind of orcastream.admission.refusals: got counter, allowed: histogram"):
            make(REFUSALS)
    with pytest.raises(ValueError, match="allowed: observable gauge, observable counter"):
        observe(QUEUE_WAIT, list)
    observe(CLAIMED, list)
