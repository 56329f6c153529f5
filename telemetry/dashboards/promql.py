"""The PromQL expressions of the panels, and the label filters for the dashboards' variables.

Both ways of collecting give a metric the labels `job` and `instance`: over OTLP they are service.name and
service.instance.id, from `/metrics` those of the scrape. The variables read whichever exist.
"""

from typing import Final

PROCESS: Final = 'job=~"$job", instance=~"$instance"'
MODEL: Final = f'{PROCESS}, gen_ai_request_model=~"$model"'
CLASS: Final = f'{MODEL}, orcastream_request_class=~"$class"'


def now(metric: str, labels: str) -> str:
    """Return a gauge's current value for live processes.

    The gauges of a scraped process disappear when it dies. Over OTLP its end is not reported, and Prometheus shows the
    last value for another five minutes; so values not renewed for several intervals do not count.
    """
    gauge = f"{metric}{{{labels}}}"
    return f"({gauge} and last_over_time({gauge}[$__rate_interval]))"


def rate(metric: str, labels: str) -> str:
    """Return a counter's growth per second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def occurred(metric: str, labels: str) -> str:
    """Return the number of rare events within the last four intervals.

    increase() would show one event as 1.33: four values span three intervals, and it extrapolates to four. Such a
    counter appears with its first event, and begins anew with its process; then its value is the number. One that was
    missing for a while, after a scrape that failed, is not new.
    """
    counter = f"{metric}{{{labels}}}"
    before = f"last_over_time({counter}[1d] offset $__rate_interval)"
    return f"({counter} - {before} >= 0) or {counter}"


def occurred_since(metric: str, labels: str) -> str:
    """Return the same for a counter that may be old when it is first seen: what it counted before does not count."""
    counter = f"{metric}{{{labels}}}"
    before = f"{counter} offset $__rate_interval"
    return f"({counter} - {before} >= 0) or ({counter} and {before})"


def total(expression: str, *by: str) -> str:
    """Return the sum over everything, or per value of the labels `by`."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def agreed(metric: str, labels: str, *by: str) -> str:
    """Return a gauge that several gateways report about one thing, such as the queue's length: not summed."""
    return f"max by ({', '.join(by)}) ({now(metric, labels)})"


def or_nothing(expression: str) -> str:
    """Return 0 if nothing is reported: an empty result would leave the last value on the panel."""
    return f"{expression} or vector(0)"


def quantile(share: float, histogram: str, labels: str, *by: str) -> str:
    """Return the value below which `share` of the observations lie, per `by`."""
    return f"histogram_quantile({share}, {total(rate(f'{histogram}_bucket', labels), 'le', *by)})"


def mean(histogram: str, labels: str) -> str:
    """Return the mean of the observations."""
    return f"{total(rate(f'{histogram}_sum', labels))} / {total(rate(f'{histogram}_count', labels))}"
