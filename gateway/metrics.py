"""What a gateway counts and measures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.entry import EntryRef
from broker.server_state import ServerState
from gateway.errors import NOT_ADMITTED
from schemas.errors import SERVICE_FAULTS
from schemas.events import Terminal
from schemas.keys import CLASSES
from telemetry import names
from telemetry.end_metrics import EndMetrics
from telemetry.histograms import histogram
from telemetry.instruments import Attributes, attributes, counter, observe
from telemetry.names import Attribute, Gap
from telemetry.queue_gauges import QueueGauges
from telemetry.redis_metrics import RedisMetrics
from telemetry.server_gauges import ServerGauges

REFUSALS: Final = (
    *("api_keys_unknown", "body_too_large", "context_length_exceeded", "gateway_stopping", "id_in_use"),
    *("internal_error", "invalid_api_key", "invalid_request", "model_not_found", "no_chat_template", "no_worker"),
    *("not_allowed", "not_on_disk", "redis_unavailable", "reply_expired", "unavailable", "unsupported_parameter"),
    *(code for code, _ in NOT_ADMITTED.values()),
)
"""Codes under which a request is refused over HTTP. Each begins with 0: the first value of a series is no increase."""
_BROKEN: Final = ("expired", "gateway_stopping", "internal_error", "reply_conflict", "request_not_found", "unavailable")
"""Errors that break a reply off."""


class GatewayMetrics:
    """The instruments of one gateway, which serves one model; they do nothing where no metrics are taken."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._labels = attributes({Attribute.MODEL: model})
        self._first_token = histogram(names.GATEWAY_FIRST_TOKEN).at(self._labels)
        self._refusals = counter(names.REFUSALS)
        for code in REFUSALS:
            self._refusals.add(0, self._of_error(code))
        self._abandoned = {name: histogram(names.GATEWAY_ABANDONED).at(self._of_class(name)) for name in CLASSES}
        gaps = histogram(names.TOKEN_GAP)
        self.gaps = {gap: gaps.at(attributes({Attribute.MODEL: model, Attribute.GAP: gap})) for gap in Gap}
        """From one arrival of a reply's tokens to the next, by what lay between them."""
        self._broken = counter(names.BROKEN_REPLIES)
        for priority_class in CLASSES:
            for code in _BROKEN:
                self._broken.add(0, {**self._of_class(priority_class), **self._of_error(code)})
        self._ends = EndMetrics(model, CLASSES, SERVICE_FAULTS)
        self._streams = 0
        observe(names.GATEWAY_STREAMS, lambda: [(self._streams, self._labels)])
        self.redis = RedisMetrics()
        self.queue = QueueGauges(model)
        self._server = ServerGauges()

    def refused(self, code: str) -> None:
        """A request was refused over HTTP."""
        self._refusals.add(1, self._of_error(code))

    def first_token(self, waited_s: float) -> None:
        """The first tokens of a reply came `waited_s` after the request."""
        self._first_token.record(waited_s)

    def abandoned(self, priority_class: str, waited_s: float) -> None:
        """A client left after `waited_s` without a token."""
        self._abandoned[priority_class].record(waited_s)

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

    def server_state(self, state: ServerState) -> None:
        """What the Redis server says of itself."""
        self._server.gathered(
            {
                names.REDIS_MEMORY: state.memory_used,
                names.REDIS_MEMORY_LIMIT: state.memory_limit,
                names.REDIS_AOF: None if state.aof_writable is None else int(state.aof_writable),
                names.REDIS_REPLICAS: state.replicas,
                names.REDIS_LAG: state.replication_lag,
                names.REDIS_EVICTED: state.keys_evicted,
                names.REDIS_REJECTED: state.connections_rejected,
                names.REDIS_SLOW: state.commands_slow,
            }
        )

    def _of_class(self, priority_class: str) -> Attributes:
        return attributes({Attribute.MODEL: self._model, Attribute.REQUEST_CLASS: priority_class})

    def _of_error(self, code: str) -> Attributes:
        return attributes({Attribute.MODEL: self._model, Attribute.ERROR_TYPE: code})
