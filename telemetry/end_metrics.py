"""What is counted and measured when a request's terminal event was written, by whichever service wrote it."""

from collections.abc import Iterable

from telemetry.instruments import Attributes, attributes, counter, histogram
from telemetry.names import OPERATION, PROVIDER, REQUEST_DURATION, REQUESTS_ENDED, Attribute


class EndMetrics:
    """The ends of one model's requests."""

    def __init__(self, model: str, classes: Iterable[str], faults: Iterable[str]) -> None:
        """`faults`: outcomes that alerts look for. They begin with 0: the first value of a series is no increase."""
        self._model = model
        self._ended = counter(REQUESTS_ENDED)
        self._duration = histogram(REQUEST_DURATION)
        for priority_class in (None, *classes):
            for outcome in faults:
                self._ended.add(0, self._labels(priority_class, outcome))

    def ended(self, priority_class: str | None, outcome: str, error: str | None, duration_s: float | None) -> None:
        """A terminal event was written; the class and the time since the arrival where they are known."""
        self._ended.add(1, self._labels(priority_class, outcome))
        if duration_s is not None:
            self._duration.record(duration_s, self._kind_and_error(priority_class, error))

    def _labels(self, priority_class: str | None, outcome: str) -> Attributes:
        return attributes({**self._shared(priority_class), Attribute.OUTCOME: outcome})

    def _kind_and_error(self, priority_class: str | None, error: str | None) -> Attributes:
        kind = {Attribute.OPERATION: OPERATION, Attribute.PROVIDER: PROVIDER}
        failed = {} if error is None else {Attribute.ERROR_TYPE: error}
        return attributes({**kind, **self._shared(priority_class), **failed})

    def _shared(self, priority_class: str | None) -> dict[Attribute, str]:
        known = {} if priority_class is None else {Attribute.REQUEST_CLASS: priority_class}
        return {Attribute.MODEL: self._model, **known}
