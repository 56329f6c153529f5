"""The few forms of PromQL that the panels are made of, and the label filters behind the dashboards' variables.

Both ways of collecting give a metric the labels `job` and `instance`: over OTLP they are service.name and
service.instance.id, from `/metrics` they are those of the scrape. The variables read whichever there are.
"""

from typing import Final

PROCESS: Final = 'job=~"$job", instance=~"$instance"'
MODEL: Final = f'{PROCESS}, gen_ai_request_model=~"$model"'
CLASS: Final = f'{MODEL}, orcastream_request_class=~"$class"'


def now(metric: str, labels: str) -> str:
    """A gauge as it is, of the processes that live.

    A process that is scraped and dies takes its gauges along. Over OTLP nobody tells that it is gone, and Prometheus
    shows its last value for five minutes more: so what has not come anew for some intervals does not count.
    """
    gauge = f"{metric}{{{labels}}}"
    return f"({gauge} and last_over_time({gauge}[$__rate_interval]))"


def rate(metric: str, labels: str) -> str:
    """A counter's growth per second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def occurred(metric: str, labels: str) -> str:
    """A counter's growth within the interval of a point, for what is rare.

    Such a counter first appears with its first event, which rate() and increase() do not see: they need a value before.
    """
    counter = f"{metric}{{{labels}}}"
    return f"({counter} unless {counter} offset $__rate_interval) or increase({counter}[$__rate_interval])"


def total(expression: str, *by: str) -> str:
    """The sum over everything, or over all but the labels of `by`."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def agreed(metric: str, labels: str, *by: str) -> str:
    """A gauge that several gateways report of one thing, such as the queue's length: not added up."""
    return f"max by ({', '.join(by)}) ({now(metric, labels)})"


def or_nothing(expression: str) -> str:
    """0 where nobody is there to tell: an empty answer would leave the last value on the panel."""
    return f"{expression} or vector(0)"


def quantile(share: float, histogram: str, labels: str, *by: str) -> str:
    """The value below which `share` of the observations lie, per `by`."""
    return f"histogram_quantile({share}, {total(rate(f'{histogram}_bucket', labels), 'le', *by)})"


def mean(histogram: str, labels: str) -> str:
    """The mean of the observations."""
    return f"{total(rate(f'{histogram}_sum', labels))} / {total(rate(f'{histogram}_count', labels))}"
