"""Spans without the messages of unexpected errors: instrumentations record whatever passes through them."""

from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.semconv.attributes.exception_attributes import EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE
from opentelemetry.trace import Status

_EXCEPTION: Final = "exception"
_CONTENT: Final = (EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE)


class WithoutContent(SpanExporter):
    """A wrapper of an exporter that keeps only the type of an exception, and no description of the resulting status."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the exporter does."""
        return self._exporter.export([_stripped(span) for span in spans])

    def shutdown(self) -> None:
        """As the exporter does."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As the exporter does."""
        return self._exporter.force_flush(timeout_millis)


def _stripped(span: ReadableSpan) -> ReadableSpan:
    if not any(event.name == _EXCEPTION for event in span.events):
        return span
    return ReadableSpan(
        span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_without_words(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_words(event: Event) -> Event:
    if event.name != _EXCEPTION:
        return event
    kept = {name: value for name, value in (event.attributes or {}).items() if name not in _CONTENT}
    return Event(event.name, kept, event.timestamp)
