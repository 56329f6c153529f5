"""What a gateway counts and measures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.entry import EntryRef
from gateway.errors import NOT_ADMITTED
from schemas.errors import SERVICE_FAULTS
from schemas.events import Terminal
from schemas.keys import CLASSES
from telemetry import names
from telemetry.end_metrics import EndMetrics
from telemetry.instruments import Attributes, attributes, counter, histogram, observe
from telemetry.names import Attribute
from telemetry.queue_gauges import QueueGauges
from telemetry.redis_metrics import RedisMetrics

_FORESEEN: Final = (
    *("internal_error", "no_worker", "redis_unavailable", "unavailable"),
    *(code for code, _ in NOT_ADMITTED.values()),
)
"""Refusals that alerts look for."""
_BROKEN: Final = ("expired", "internal_error", "reply_conflict", "request_not_found", "unavailable")
"""Errors that break a reply off."""


class GatewayMetrics:
    """The instruments of one gateway, which serves one model; they do nothing where no metrics are taken."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._labels = attributes({Attribute.MODEL: model})
        self._first_token = histogram(names.GATEWAY_FIRST_TOKEN)
        self._refusals = counter(names.REFUSALS)
        for code in _FORESEEN:
            self._refusals.add(0, self._of_error(code))  # the first value of a series is no increase
        self._abandoned = histogram(names.GATEWAY_ABANDONED)
        self._broken = counter(names.BROKEN_REPLIES)
        for priority_class in CLASSES:
            for code in _BROKEN:
                self._broken.add(0, {**self._of_class(priority_class), **self._of_error(code)})
        self._ends = EndMetrics(model, CLASSES, SERVICE_FAULTS)
        self._streams = 0
        observe(names.GATEWAY_STREAMS, lambda: [(self._streams, self._labels)])
        self.redis = RedisMetrics()
        self.queue = QueueGauges(model)

    def refused(self, code: str) -> None:
        """A request was refused over HTTP."""
        self._refusals.add(1, self._of_error(code))

    def first_token(self, waited_s: float) -> None:
        """The first tokens of a reply came `waited_s` after the request."""
        self._first_token.record(waited_s, self._labels)

    def abandoned(self, priority_class: str, waited_s: float) -> None:
        """A client left after `waited_s` without a token."""
        self._abandoned.record(waited_s, self._of_class(priority_class))

    def broken_off(self, priority_class: str, code: str) -> None:
        """A client was told of an error that is not its request's end."""
        self._broken.add(1, {**self._of_class(priority_class), **self._of_error(code)})

    @contextmanager
    def stream(self) -> Iterator[None]:
        """While a reply is read for a client."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def ended(self, ref: EntryRef | None, terminal: Terminal, now_ms: int) -> None:
        """This gateway wrote the terminal event of a request that nobody owned (`broker.ending.OnEnd`)."""
        outcome = str(terminal.error)
        if ref is None:
            self._ends.ended(None, outcome, outcome, None)
        else:
            self._ends.ended(ref.priority_class, outcome, outcome, max(0, now_ms - ref.order[0]) / 1000)

    def _of_class(self, priority_class: str) -> Attributes:
        return attributes({Attribute.MODEL: self._model, Attribute.REQUEST_CLASS: priority_class})

    def _of_error(self, code: str) -> Attributes:
        return attributes({Attribute.MODEL: self._model, Attribute.ERROR_TYPE: code})
