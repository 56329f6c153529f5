"""Metrics recorded when a request's terminal event is written, by whichever service wrote it."""

from collections.abc import Iterable, Sequence

from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.instruments import Attributes, Values, attributes, observe
from orcastream.telemetry.names import OPERATION, PROVIDER, REQUEST_DURATION, REQUESTS_ENDED, Attribute


class EndMetrics:
    """Metrics of the ends of one model's requests."""

    def __init__(self, model: str, classes: Iterable[str], outcomes: Sequence[str]) -> None:
        """`outcomes`: all that may occur. Their series start at 0: a series' first value is no increase."""
        self._model = model
        self._duration = histogram(REQUEST_DURATION)
        self._ended = {(one, str(outcome)): 0 for one in (None, *classes) for outcome in outcomes}
        observe(REQUESTS_ENDED, self._read)

    def ended(self, priority_class: str | None, outcome: str, error: str | None, duration_s: float | None) -> None:
        """Record that a terminal event was written; class and time since arrival may be unknown (None)."""
        key = priority_class, outcome
        self._ended[key] = self._ended.get(key, 0) + 1
        if duration_s is not None:
            failed = {} if error is None else {Attribute.ERROR_TYPE: error}
            kind = {Attribute.OPERATION: OPERATION, Attribute.PROVIDER: PROVIDER}
            self._duration.record(duration_s, self._labels(priority_class, {**kind, **failed}))

    def _read(self) -> Values:
        return [
            (count, self._labels(priority_class, {Attribute.OUTCOME: outcome}))
            for (priority_class, outcome), count in list(self._ended.items())
        ]

    def _labels(self, priority_class: str | None, more: dict[Attribute, str]) -> Attributes:
        known = {} if priority_class is None else {Attribute.REQUEST_CLASS: priority_class}
        return attributes({Attribute.MODEL: self._model, **known, **more})
