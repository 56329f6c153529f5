"""What is counted and measured when a request's terminal event was written, by whichever service wrote it."""

from telemetry.instruments import attributes, counter, histogram
from telemetry.names import OPERATION, PROVIDER, REQUEST_DURATION, REQUESTS_ENDED, Attribute


class EndMetrics:
    """The ends of one model's requests."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._ended = counter(REQUESTS_ENDED)
        self._duration = histogram(REQUEST_DURATION)

    def ended(self, priority_class: str | None, outcome: str, error: str | None, duration_s: float | None) -> None:
        """A terminal event was written; the class and the time since the arrival where they are known."""
        shared = {Attribute.MODEL: self._model}
        if priority_class is not None:
            shared[Attribute.REQUEST_CLASS] = priority_class
        self._ended.add(1, attributes({**shared, Attribute.OUTCOME: outcome}))
        if duration_s is not None:
            kind = {Attribute.OPERATION: OPERATION, Attribute.PROVIDER: PROVIDER}
            failed = {} if error is None else {Attribute.ERROR_TYPE: error}
            self._duration.record(duration_s, attributes({**kind, **shared, **failed}))
