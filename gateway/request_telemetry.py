"""What the trace of one HTTP request records about its generation."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from orcastream.broker.queue import Enqueued
from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.metrics import ModelMetrics
from orcastream.gateway.openai.endpoints import endpoint_of
from orcastream.schemas.events import Started, Terminal
from orcastream.schemas.keys import Keys
from orcastream.schemas.limits import MAX_TRACE_HEADER_LENGTH
from orcastream.schemas.request import GenerationRequest
from orcastream.telemetry import names
from orcastream.telemetry.instruments import attributes
from orcastream.telemetry.messaging import messaging
from orcastream.telemetry.names import Attribute, Span, SpanEvent
from orcastream.telemetry.trace_context import headers, remote_span, tracer


class RequestTelemetry:
    """Writes to the server span that is current at construction, and to the gateway's metrics.

    The span ends with the last byte of the answer, so everything must be recorded before that.
    """

    def __init__(self, *, timed: bool = True) -> None:
        """`timed`: the client's wait for the first tokens begins now."""
        self._metrics: ModelMetrics | None = None
        self._span = trace.get_current_span()
        self._waiting_since = time.monotonic() if timed else None
        self._priority_class: str | None = None
        self._input_tokens = 0
        self._terminal: Terminal | None = None
        self._worker: str | None = None
        self._prompts = [self]
        """Those of all prompts of the HTTP request: the span states their sums, and the id of the first."""

    def another(self) -> "RequestTelemetry":
        """Return the telemetry of another prompt in the same HTTP request; its client has waited equally long."""
        other = RequestTelemetry()
        other._waiting_since = self._waiting_since
        other._prompts = self._prompts
        self._prompts.append(other)
        return other

    def asked(self, request: GenerationRequest, model: str, metrics: ModelMetrics) -> None:
        """Record the request's parameters."""
        payload = request.payload
        self._metrics = metrics
        self._priority_class = request.priority_class
        self._input_tokens = len(payload.prompt)
        if self is self._prompts[0]:
            self._set(
                {
                    **_of_request(request.id, model, payload.tenant),
                    Attribute.REQUEST_CLASS: request.priority_class,
                    Attribute.MAX_TOKENS: payload.max_tokens,
                    Attribute.CHOICES: payload.n,
                }
            )
        self._set({Attribute.INPUT_TOKENS: sum(one._input_tokens for one in self._prompts)})

    def resumed(
        self, request_id: str, model: str, tenant: str, priority_class: str | None, metrics: ModelMetrics
    ) -> None:
        """Record which reply is resumed, and the class of its request if that is still known."""
        self._metrics = metrics
        self._priority_class = priority_class
        self._set({**_of_request(request_id, model, tenant), Attribute.REQUEST_CLASS: priority_class})

    def updated(self, update: Update) -> None:
        """Record an update of the reply, before it is written to the client."""
        if update.started is not None:
            self._begun(update, update.started)
        if update.runs and self._waiting_since is not None and self._metrics is not None:
            self._metrics.first_token(time.monotonic() - self._waiting_since)
            self._waiting_since = None
        if update.terminal is not None:
            self._terminal = update.terminal
            self._ended(update.terminal)

    def _begun(self, update: Update, started: Started) -> None:
        """Record a new epoch. If its worker dies or its span is not sampled, this is the only trace of it."""
        process = remote_span(started.traceparent)
        if process is not None and process.trace_id != self._span.get_span_context().trace_id:
            self._span.add_link(process)
        self._span.add_event(
            SpanEvent.EPOCH.value,
            {
                Attribute.WORKER.value: started.worker,
                Attribute.EPOCH.value: update.epoch,
                Attribute.CONTINUED_TOKENS.value: sum(update.counts),
            },
        )
        if self._worker not in (None, started.worker):
            self._set({Attribute.TAKEN_OVER_FROM: self._worker})
        self._worker = started.worker

    def failed(self, error: ApiError) -> None:
        """Record `error`, which the client receives; the span fails if the service did."""
        self._set({Attribute.ERROR_TYPE: error.code or str(error.status)})
        if error.is_failure:
            self._span.set_status(StatusCode.ERROR, error.message)

    def broke_off(self, error: ApiError) -> None:
        """Record the error that ends an accepted request for its client: its own end, or a failure of the gateway."""
        if self._terminal is None and self._priority_class is not None and self._metrics is not None:
            self._metrics.broken_off(self._priority_class, error.code or str(error.status))
        self.failed(error)

    def left(self) -> None:
        """Record that the client left before the end."""
        waiting_since, self._waiting_since = self._waiting_since, None
        if waiting_since is not None and self._priority_class is not None and self._metrics is not None:
            self._metrics.abandoned(self._priority_class, time.monotonic() - waiting_since)
        self._span.add_event(SpanEvent.CLIENT_LEFT)

    def _ended(self, terminal: Terminal) -> None:
        self._input_tokens = terminal.usage.prompt_tokens
        ended = [one._terminal for one in self._prompts if one._terminal is not None]
        reasons = [ending.finish_reason for one in ended for ending in one.endings]
        self._set(
            {
                Attribute.FINISH_REASONS: [str(reason) for reason in reasons if reason is not None],
                Attribute.INPUT_TOKENS: sum(one._input_tokens for one in self._prompts),
                Attribute.OUTPUT_TOKENS: sum(one.usage.completion_tokens for one in ended),
                Attribute.CACHED_TOKENS: sum(one.usage.cached_tokens for one in ended),
            }
        )

    def _set(self, values: Mapping[Attribute, str | int | list[str] | None]) -> None:
        if self._span.is_recording():
            self._span.set_attributes({str(name): value for name, value in values.items() if value is not None})


class Sending:
    """The `send` span around one enqueueing; its context travels in the queue entry."""

    def __init__(self, request: GenerationRequest, span: trace.Span) -> None:
        self.request = request
        self._span = span

    def sent(self, enqueued: Enqueued) -> None:
        """Record the entry's id in the stream."""
        self._span.set_attribute(Attribute.MESSAGE_ID, enqueued.entry.entry_id)


@contextmanager
def sending(request: GenerationRequest, keys: Keys, client: str) -> Iterator[Sending]:
    """Yield `request` as it is to be enqueued inside.

    Without traces, its client's own context is passed on unchanged.
    """
    template = keys.requests_template
    span = tracer().start_span(f"{Span.SEND} {template}", kind=SpanKind.PRODUCER)
    if span.is_recording():
        span.set_attributes(
            attributes(
                {
                    **messaging(Span.SEND, template, keys.model, request.priority_class, client),
                    Attribute.RESPONSE_ID: request.id,
                    Attribute.TENANT: request.payload.tenant,
                }
            )
        )
    traceparent, tracestate = headers(span)
    if traceparent is not None:
        request = replace(request, traceparent=traceparent, tracestate=_short(tracestate))
    try:
        yield Sending(request, span)
    except ApiError as error:
        span.set_attribute(Attribute.ERROR_TYPE, error.code or str(error.status))
        span.set_status(StatusCode.ERROR, error.message)
        raise
    finally:
        span.end()


def _short(tracestate: str | None) -> str | None:
    """Return the tracestate if it fits into a queue entry; the standard allows dropping it."""
    return tracestate if tracestate and len(tracestate) <= MAX_TRACE_HEADER_LENGTH and tracestate.isascii() else None


def _of_request(request_id: str, model: str, tenant: str) -> dict[Attribute, str | int | list[str] | None]:
    return {
        Attribute.OPERATION: endpoint_of(request_id).operation,
        Attribute.PROVIDER: names.PROVIDER,
        Attribute.MODEL: model,
        Attribute.RESPONSE_ID: request_id,
        Attribute.TENANT: tenant,
    }
