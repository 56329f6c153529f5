"""What a gateway counts and measures."""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.entry import EntryRef
from schemas.events import Terminal
from telemetry import names
from telemetry.end_metrics import EndMetrics
from telemetry.instruments import attributes, counter, histogram, observe
from telemetry.names import Attribute
from telemetry.queue_gauges import QueueGauges
from telemetry.redis_metrics import RedisMetrics


class GatewayMetrics:
    """The instruments of one gateway, which serves one model; they do nothing where no metrics are taken."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._labels = attributes({Attribute.MODEL: model})
        self._first_token = histogram(names.GATEWAY_FIRST_TOKEN)
        self._refusals = counter(names.REFUSALS)
        self._ends = EndMetrics(model)
        self._streams = 0
        observe(names.GATEWAY_STREAMS, lambda: [(self._streams, self._labels)])
        self.redis = RedisMetrics()
        self.queue = QueueGauges(model)

    def refused(self, code: str) -> None:
        """A request was refused over HTTP."""
        self._refusals.add(1, attributes({Attribute.MODEL: self._model, Attribute.ERROR_TYPE: code}))

    def first_token(self, waited_s: float) -> None:
        """The first tokens of a reply came `waited_s` after the request."""
        self._first_token.record(waited_s, self._labels)

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
