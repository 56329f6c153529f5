"""The W3C trace context in queue entries and reply logs."""

from functools import cache

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, Tracer, get_current_span, get_tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orcastream.telemetry.instruments import SCOPE

_PROPAGATOR = TraceContextTextMapPropagator()


@cache
def tracer() -> Tracer:
    """Return the tracer of all spans of this project; without an SDK its spans record nothing."""
    return get_tracer(SCOPE)


def remote_context(traceparent: str | None, tracestate: str | None = None) -> Context:
    """Return the context that these headers name, to be a span's parent; an empty one if they name none."""
    if not traceparent:
        return Context()
    carrier = {"traceparent": traceparent, **({"tracestate": tracestate} if tracestate else {})}
    return _PROPAGATOR.extract(carrier, Context())


def remote_span(traceparent: str | None) -> SpanContext | None:
    """Return the span that a traceparent names, for a link; None if it names none."""
    span = get_current_span(remote_context(traceparent)).get_span_context()
    return span if span.is_valid else None


def headers(span: Span) -> tuple[str | None, str | None]:
    """Return `traceparent` and `tracestate` of a span for propagation; None where there is no value."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent"), carrier.get("tracestate")
