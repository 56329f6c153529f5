"""The W3C trace context as it travels in queue entries and reply logs."""

from functools import cache

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, Tracer, get_current_span, get_tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orcastream.telemetry.instruments import SCOPE

_PROPAGATOR = TraceContextTextMapPropagator()


@cache
def tracer() -> Tracer:
    """The tracer of every span of this project; without an SDK its spans record nothing."""
    return get_tracer(SCOPE)


def remote_context(traceparent: str | None, tracestate: str | None = None) -> Context:
    """The context that these headers name, to be a span's parent; an empty one where they name none."""
    if not traceparent:
        return Context()
    carrier = {"traceparent": traceparent, **({"tracestate": tracestate} if tracestate else {})}
    return _PROPAGATOR.extract(carrier, Context())


def remote_span(traceparent: str | None) -> SpanContext | None:
    """The span that a traceparent names, to be linked to; None where it names none."""
    span = get_current_span(remote_context(traceparent)).get_span_context()
    return span if span.is_valid else None


def headers(span: Span) -> tuple[str | None, str | None]:
    """`traceparent` and `tracestate` of a span, as others shall find them; None where there is nothing to say."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent"), carrier.get("tracestate")
