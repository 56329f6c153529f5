"""The metrics of a gateway."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from orcastream.broker.entry import EntryRef
from orcastream.broker.server_state import ServerState
from orcastream.gateway.errors import NOT_ADMITTED
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import CLASSES
from orcastream.telemetry import names
from orcastream.telemetry.end_metrics import EndMetrics
from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.instruments import Attributes, attributes, counter, observe
from orcastream.telemetry.names import Attribute, Gap
from orcastream.telemetry.queue_gauges import QueueGauges
from orcastream.telemetry.redis_metrics import RedisMetrics
from orcastream.telemetry.server_gauges import ServerGauges

REFUSALS: Final = (
    *("api_keys_unknown", "bodies_full", "body_too_large", "context_length_exceeded", "foreign_origin"),
    *("gateway_stopping", "id_in_use", "internal_error", "invalid_api_key", "invalid_constraint", "invalid_host"),
    *("invalid_request", "method_not_allowed", "model_not_found", "no_chat_template", "no_worker", "not_allowed"),
    *("not_on_disk", "redis_unavailable", "reply_expired", "unavailable", "unknown_host", "unsupported_parameter"),
    *("console_full", "item_not_found", "policy_switch_not_allowed", "previous_response_not_found"),
    "unsupported_media_type",
    *(code for code, _ in NOT_ADMITTED.values()),
)
"""Codes of requests refused over HTTP.

Each series starts at 0: Prometheus sees no increase in a series' first value.
"""
_BROKEN: Final = ("expired", "gateway_stopping", "internal_error", "reply_conflict", "request_not_found", "unavailable")
"""Errors that interrupt a reply."""


class GatewayMetrics:
    """The instruments of one gateway process; no-ops if no metrics are collected."""

    def __init__(self, models: Sequence[str]) -> None:
        """`models`: all served models; a refusal before its model is known counts under the first."""
        self._first_model = models[0]
        self._refusals = counter(names.REFUSALS)
        for model in models:
            for code in REFUSALS:
                self._refusals.add(0, _of_error(model, code))
        self.redis = RedisMetrics()
        self._server = ServerGauges()

    def refused(self, code: str, model: str | None = None) -> None:
        """Count a request refused over HTTP; `model` if it was known."""
        self._refusals.add(1, _of_error(model or self._first_model, code))

    def server_state(self, state: ServerState) -> None:
        """Take over what the Redis server reports about itself."""
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
            },
            state.run_id,
        )


class ModelMetrics:
    """The instruments of one served model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._labels = attributes({Attribute.MODEL: model})
        self._first_token = histogram(names.GATEWAY_FIRST_TOKEN).at(self._labels)
        self._abandoned = {name: histogram(names.GATEWAY_ABANDONED).at(self._of_class(name)) for name in CLASSES}
        gaps = histogram(names.TOKEN_GAP)
        self.gaps = {gap: gaps.at(attributes({Attribute.MODEL: model, Attribute.GAP: gap})) for gap in Gap}
        """Time between two arrivals of a reply's tokens, by what happened between them."""
        self._broken = counter(names.BROKEN_REPLIES)
        for priority_class in CLASSES:
            for code in _BROKEN:
                self._broken.add(0, {**self._of_class(priority_class), **_of_error(self._model, code)})
        self._ends = EndMetrics(model, CLASSES, tuple(ErrorCode))
        self._dead = counter(names.DEAD_LETTERS)
        self._dead.add(0, self._labels)
        self._streams = 0
        observe(names.GATEWAY_STREAMS, lambda: [(self._streams, self._labels)])
        self.queue = QueueGauges(model)

    def first_token(self, waited_s: float) -> None:
        """Record that a reply's first tokens came `waited_s` after the request."""
        self._first_token.record(waited_s)

    def abandoned(self, priority_class: str, waited_s: float) -> None:
        """Record that a client left after `waited_s` without a token."""
        self._abandoned[priority_class].record(waited_s)

    def broken_off(self, priority_class: str, code: str) -> None:
        """Count a reply that ended for the client with an error that is not its request's end."""
        self._broken.add(1, {**self._of_class(priority_class), **_of_error(self._model, code)})

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream while a reply is read for a client."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def ended(self, ref: EntryRef | None, terminal: Terminal, now_ms: int) -> None:
        """Count a terminal event that this gateway wrote for an unowned request (`orcastream.broker.ending.OnEnd`)."""
        outcome = str(terminal.error)
        if ref is None:
            self._ends.ended(None, outcome, outcome, None)
        else:
            self._ends.ended(ref.priority_class, outcome, outcome, max(0, now_ms - ref.order[0]) / 1000)

    def set_aside(self) -> None:
        """Count an entry that this gateway turned into a dead letter (`orcastream.broker.ending.OnSetAside`)."""
        self._dead.add(1, self._labels)

    def _of_class(self, priority_class: str) -> Attributes:
        return attributes({Attribute.MODEL: self._model, Attribute.REQUEST_CLASS: priority_class})


def _of_error(model: str, code: str) -> Attributes:
    return attributes({Attribute.MODEL: model, Attribute.ERROR_TYPE: code})
