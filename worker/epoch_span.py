"""The `process` span of one epoch of one request, and the phases inside it."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.trace import SpanContext, SpanKind, StatusCode, get_current_span

from orcastream.broker.claimed import Claimed
from orcastream.broker.entry import EntryRef
from orcastream.broker.fold import Fold
from orcastream.engine import Timeline
from orcastream.schemas.errors import ErrorCode, InvalidRequest, without_values
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import GROUP
from orcastream.schemas.request import GenerationRequest, trace_header
from orcastream.telemetry import names
from orcastream.telemetry.messaging import messaging
from orcastream.telemetry.names import Attribute, Outcome, Span
from orcastream.telemetry.trace_context import headers, remote_context, remote_span, tracer
from orcastream.worker.phases import Phases, Value, at_ns, plain
from orcastream.worker.times import Times

_ERRORS: Final = frozenset(
    {Outcome.LEASE_LOST, Outcome.FENCED, Outcome.CONNECTION_LOST, Outcome.UNWRITABLE, Outcome.ENGINE_FAILED}
)
_NO_FAULT: Final = frozenset({ErrorCode.CANCELLED})
"""Ends that were requested: their spans have not failed."""


class EpochSpan:
    """Begins before the epoch's started event is written, which carries its context, and ends with the epoch.

    Its parent is the producer's span, named in the queue entry; without one it is a root. The phases become children
    when it ends, and only if it is recorded, so that they cost nothing otherwise. All its times come from one reading
    of the wall clock and the monotonic clock.
    """

    def __init__(
        self,
        template: str,
        worker: str,
        model: str,
        ref: EntryRef,
        request: GenerationRequest,
        claimed_s: float | None,
    ) -> None:
        """`claimed_s`: for the first epoch after a claim; other epochs begin now."""
        self._clock_ns = time.time_ns() - time.monotonic_ns()
        self._begin_s = time.monotonic() if claimed_s is None else claimed_s
        self._worker = worker
        parent = remote_context(request.traceparent, request.tracestate)
        self._span = tracer().start_span(
            f"{Span.PROCESS} {template}",
            context=parent,
            kind=SpanKind.CONSUMER,
            start_time=at_ns(self._clock_ns, self._begin_s),
        )
        if self._span.is_recording():
            self._set(
                {
                    **_of_entry(template, worker, model, ref),
                    Attribute.RESPONSE_ID: request.id,
                    Attribute.CHOICES: request.payload.n,
                    Attribute.INPUT_TOKENS: len(request.payload.prompt),
                    Attribute.TENANT: request.payload.tenant,
                }
            )
        self._is_own = self.context.span_id != get_current_span(parent).get_span_context().span_id
        self._over = False
        self._first = False

    @property
    def context(self) -> SpanContext:
        """The context that other spans link to."""
        return self._span.get_span_context()

    @property
    def traceparent(self) -> str | None:
        """For the started event; None if this worker has no span."""
        return headers(self._span)[0] if self._is_own else None

    def attached(self, epoch: int, fold: Fold, *, deliveries: int, max_tokens: int) -> None:
        """Record that the epoch has begun; link it to the request's previous epoch, if any."""
        self._first = fold.previous_started is None
        if not self._span.is_recording():
            return
        before = None if fold.previous_started is None else remote_span(fold.previous_started.traceparent)
        if before is not None:
            self._span.add_link(before)
        if fold.previous_started is not None and fold.previous_started.worker != self._worker:
            self._set({Attribute.TAKEN_OVER_FROM: fold.previous_started.worker})
        self._set(
            {
                Attribute.EPOCH: epoch,
                Attribute.DELIVERIES: deliveries,
                Attribute.MAX_TOKENS: max_tokens,
                Attribute.CONTINUED_TOKENS: sum(map(len, fold.tokens)),
            }
        )

    def end(self, terminal: Terminal, times: Times, timelines: Iterable[Timeline]) -> None:
        """End the span with the terminal event that was written."""
        reasons = [str(ending.finish_reason) for ending in terminal.endings if ending.finish_reason is not None]
        self._end(
            terminal.outcome,
            terminal.error,
            times,
            timelines,
            {
                Attribute.FINISH_REASONS: reasons,
                Attribute.OUTPUT_TOKENS: terminal.usage.completion_tokens,
                Attribute.CACHED_TOKENS: terminal.usage.cached_tokens,
            },
        )

    def abandon(
        self, outcome: Outcome, times: Times, timelines: Iterable[Timeline] = (), *, output_tokens: int = 0
    ) -> None:
        """End the span of an epoch without its own terminal event; `output_tokens` are in the log. Idempotent."""
        error = outcome if outcome in _ERRORS else None
        self._end(outcome, error, times, timelines, {Attribute.OUTPUT_TOKENS: output_tokens})

    def _end(
        self,
        outcome: str,
        error: ErrorCode | Outcome | None,
        times: Times,
        timelines: Iterable[Timeline],
        values: Mapping[Attribute, Value],
    ) -> None:
        if self._over:
            return
        self._over = True
        end_s = times.terminal_logged_s or time.monotonic()
        if self._span.is_recording():
            phases = Phases(self._span, self._clock_ns, self._begin_s, list(timelines))
            if self._first:
                phases.queue(times)
            phases.compute(times.terminal_made_s or end_s)
            phases.publish(times)
            self._set({**values, Attribute.OUTCOME: str(outcome), Attribute.PREEMPTIONS: phases.preemptions})
            if error is not None:
                self._set({Attribute.ERROR_TYPE: str(error)})
                if error not in _NO_FAULT:
                    self._span.set_status(StatusCode.ERROR, str(error))
        self._span.end(at_ns(self._clock_ns, end_s))

    def _set(self, values: Mapping[Attribute, Value]) -> None:
        self._span.set_attributes(plain(values))


def trace_refused(template: str, worker: str, model: str, claimed: Claimed, error: InvalidRequest) -> SpanContext:
    """Record the span of an entry that breaks the contract; its parent is the producer's span, if readable."""
    traceparent, tracestate = (trace_header(claimed.fields, name) for name in (b"traceparent", b"tracestate"))
    request_id = claimed.request_id
    span = tracer().start_span(
        f"{Span.PROCESS} {template}",
        remote_context(traceparent, tracestate),
        SpanKind.CONSUMER,
        plain(
            {
                **_of_entry(template, worker, model, claimed.ref),
                **({} if request_id is None else {Attribute.RESPONSE_ID: request_id}),
                Attribute.DELIVERIES: claimed.deliveries,
                Attribute.OUTCOME: error.code,
                Attribute.ERROR_TYPE: error.code,
            }
        ),
    )
    span.set_status(StatusCode.ERROR, without_values(str(error)))
    span.end()
    return span.get_span_context()


def _of_entry(template: str, worker: str, model: str, ref: EntryRef) -> dict[Attribute, Value]:
    return {
        Attribute.OPERATION: names.OPERATION,
        Attribute.PROVIDER: names.PROVIDER,
        **messaging(Span.PROCESS, template, model, ref.priority_class, worker),
        Attribute.CONSUMER_GROUP: GROUP,
        Attribute.MESSAGE_ID: ref.entry_id,
    }
