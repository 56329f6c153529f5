"""Instruments created from the entries of names.py, through the OpenTelemetry API; without an SDK they do nothing.

Histograms are in histograms.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Counter, Meter, Observation, get_meter

from orcastream.telemetry.names import Attribute, Kind, Metric

SCOPE: Final = "orcastream"
"""Name of the meter and of the tracer."""

Attributes = Mapping[str, str]
Values = Iterable[tuple[float, Attributes]]
Read = Callable[[], Values]

_READS: Final[WeakKeyDictionary[Meter, dict[str, list[Read]]]] = WeakKeyDictionary()
"""The sources of each observed metric's values: the SDK takes one callback per name and ignores further ones."""


def attributes(values: Mapping[Attribute, str]) -> Attributes:
    """Return attributes with plain string keys, to be created once and used for many records."""
    return {str(name): value for name, value in values.items()}


def counter(metric: Metric) -> Counter:
    """Return a counter. Raises ValueError if `metric` is of another kind."""
    _check(metric, Kind.COUNTER)
    return _meter().create_counter(metric.name, metric.unit, metric.description)


def observe(metric: Metric, read: Read) -> None:
    """Register `read` to be called when metrics are collected; it returns pairs of a value and its attributes.

    A metric may have several sources. `read` runs in a thread of the exporter, so what it reads must be safe for that.
    Raises ValueError if `metric` is not observable.
    """
    _check(metric, Kind.GAUGE, Kind.TOTAL)
    meter = _meter()
    reads = _READS.setdefault(meter, {}).setdefault(metric.name, [])
    reads.append(read)
    if len(reads) > 1:
        return

    def callback(_: CallbackOptions) -> list[Observation]:
        return [Observation(value, labels) for one in reads for value, labels in one()]

    create = meter.create_observable_gauge if metric.kind is Kind.GAUGE else meter.create_observable_counter
    create(metric.name, [callback], metric.unit, metric.description)


def _meter() -> Meter:
    return get_meter(SCOPE)


def _check(metric: Metric, *allowed: Kind) -> None:
    if metric.kind not in allowed:
        raise ValueError(f"kind of {metric.name}: got {metric.kind}, allowed: {', '.join(allowed)}")
