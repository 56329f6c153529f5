"""Instruments made from the entries of names.py, through the OpenTelemetry API: without an SDK they do nothing."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation, get_meter

from telemetry.names import Attribute, Kind, Metric

SCOPE: Final = "orcastream"
"""Name of the meter and of the tracer."""

Attributes = Mapping[str, str]
Values = Iterable[tuple[float, Attributes]]
Read = Callable[[], Values]


def attributes(values: Mapping[Attribute, str]) -> Attributes:
    """Attributes with plain strings for keys, to be made once and used for many records."""
    return {str(name): value for name, value in values.items()}


class BatchedHistogram:
    """A histogram for what happens often: its values reach the SDK in batches, the last ones when it collects.

    The SDK's record is a long way through code that has left the processor's caches since the last one; many in a row
    take a third of the time. Any thread may record. A batch knows no span, so there are no exemplars.
    """

    _BATCH: Final = 64

    def __init__(self, instrument: Histogram) -> None:
        self._instrument = instrument
        self._values: deque[tuple[float, Attributes]] = deque()

    def record(self, value: float, labels: Attributes) -> None:
        """Add a value; `labels` must not change any more."""
        self._values.append((value, labels))
        if len(self._values) >= self._BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand everything over."""
        while self._values:
            try:
                value, labels = self._values.popleft()
            except IndexError:  # another thread was faster
                return
            self._instrument.record(value, labels)


def counter(metric: Metric) -> Counter:
    """A counter; ValueError where `metric` is of another kind."""
    _check(metric, Kind.COUNTER)
    return _meter().create_counter(metric.name, metric.unit, metric.description)


def histogram(metric: Metric) -> Histogram:
    """A histogram with the buckets of `metric`; ValueError where it is of another kind."""
    _check(metric, Kind.HISTOGRAM)
    return _meter().create_histogram(
        metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
    )


def batched_histogram(metric: Metric) -> BatchedHistogram:
    """A histogram as above; ValueError where `metric` is of another kind."""
    batched = BatchedHistogram(histogram(metric))

    def flush(_: CallbackOptions) -> list[Observation]:
        batched.flush()
        return []

    _meter().create_observable_gauge(f"{metric.name}.flush", [flush])  # observed before histograms are collected
    return batched


def observe(metric: Metric, read: Read) -> None:
    """Let `read` be asked whenever metrics are collected: pairs of a value and its attributes.

    `read` runs in a thread of the exporter, so what it looks at must bear that. ValueError where `metric` is no
    observable one.
    """
    _check(metric, Kind.GAUGE, Kind.TOTAL)

    def callback(_: CallbackOptions) -> list[Observation]:
        return [Observation(value, labels) for value, labels in read()]

    meter = _meter()
    create = meter.create_observable_gauge if metric.kind is Kind.GAUGE else meter.create_observable_counter
    create(metric.name, [callback], metric.unit, metric.description)


def _meter() -> Meter:
    return get_meter(SCOPE)


def _check(metric: Metric, *allowed: Kind) -> None:
    if metric.kind not in allowed:
        raise ValueError(f"kind of {metric.name}: got {metric.kind}, allowed: {', '.join(allowed)}")
