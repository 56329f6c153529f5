"""Metrics in Prometheus: their names, and the page that is scraped.

The names are those of OpenTelemetry's exporter, which Prometheus itself also gives to metrics received over OTLP, so
one dashboard works with both.
"""

import re
import threading
from typing import TYPE_CHECKING, Final

from orcastream.telemetry.names import Kind, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9]+")
_UNITS: Final = {"s": "seconds", "By": "bytes", "1": ""}
_COUNTED: Final = (Kind.COUNTER, Kind.TOTAL)
_HISTOGRAM_SUFFIXES: Final = ("_bucket", "_sum", "_count")
_ONE_AT_A_TIME: Final = threading.Lock()
"""OpenTelemetry's exporter mixes up overlapping scrapes: one page shows everything twice, another nothing."""


def prometheus_name(metric: Metric) -> str:
    """Return the name in Prometheus: a counter's ends in `_total`, a histogram's is the stem of three series."""
    name, unit = _NOT_ALLOWED.sub("_", metric.name), _unit(metric.unit)
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    return f"{name}_total" if metric.kind in _COUNTED and not name.endswith("_total") else name


def prometheus_series(metric: Metric) -> tuple[str, ...]:
    """Return the names of all series that a query may use."""
    name = prometheus_name(metric)
    return tuple(name + suffix for suffix in _HISTOGRAM_SUFFIXES) if metric.kind is Kind.HISTOGRAM else (name,)


def prometheus_label(attribute: str) -> str:
    """Return the label of an attribute."""
    return _NOT_ALLOWED.sub("_", attribute)


def metrics_page(registry: "CollectorRegistry", accept: str) -> tuple[bytes, str]:
    """Return the page for a scrape and its content type, in a format of the `Accept` header if that can be parsed."""
    from prometheus_client.exposition import choose_encoder

    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        encode, content_type = choose_encoder("")
    with _ONE_AT_A_TIME:
        return encode(registry), content_type


def _unit(unit: str) -> str:
    """Return `seconds` for `s`; text in braces is an annotation, not a unit. Raises KeyError for an unknown unit."""
    bare = re.sub(r"\{.*\}", "", unit)
    return _UNITS[bare] if bare else ""
