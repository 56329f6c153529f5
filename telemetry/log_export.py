"""Export of log records through OpenTelemetry, for OTEL_LOGS_EXPORTER."""

import logging
import traceback
from collections.abc import Mapping
from typing import Final

from opentelemetry._logs import LoggerProvider, LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.semconv.attributes.exception_attributes import (
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    EXCEPTION_TYPE,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from orcastream.telemetry.error_outline import outline, type_name
from orcastream.telemetry.logs import EXPORT_LOGGERS, extra_fields

_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)
_TRACE: Final = ("trace_id", "span_id")
_LONGEST: Final = 16_000
"""Maximum characters of a text: stores refuse a line whose fields together are too long (Loki: over 64 KiB)."""


class ExportHandler(logging.Handler):
    """A handler that passes records to `provider`, with their extra fields as attributes. It drops the exporters' own
    records, or each failed export would cause the next one."""

    def __init__(self, provider: LoggerProvider, *, content: bool = False) -> None:
        """`content`: also export the messages of unexpected errors."""
        super().__init__()
        self._provider = provider
        self._content = content

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record; never block, never raise."""
        if record.name.startswith(EXPORT_LOGGERS):
            return
        try:
            self._emit(record)
        except Exception:
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        severity = next((number for level, number in _SEVERITIES if record.levelno >= level), SeverityNumber.DEBUG)
        fields = extra_fields(record)
        context = _context(fields)
        attributes = {name: _plain(value) for name, value in fields.items() if context is None or name not in _TRACE}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            attributes |= self._told(error)
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                context=context,
                severity_text=record.levelname,
                severity_number=severity,
                body=_text(record.getMessage()),
                attributes=attributes,
            )
        )

    def _told(self, error: BaseException) -> dict[str, str]:
        """Return the attributes that describe `error`."""
        if not self._content:
            return {EXCEPTION_TYPE: type_name(error), EXCEPTION_STACKTRACE: _text(outline(error))}
        stacktrace = "".join(traceback.format_exception(error))
        return {
            EXCEPTION_TYPE: type_name(error),
            EXCEPTION_MESSAGE: _text(str(error)),
            EXCEPTION_STACKTRACE: _text(stacktrace),
        }


def _context(fields: Mapping[str, object]) -> Context | None:
    """Return the context of the trace that a record names (`logs.trace_fields`); None: that of the current span."""
    try:
        trace_id, span_id = (int(str(fields[name]), 16) for name in _TRACE)
    except (KeyError, ValueError):
        return None
    return set_span_in_context(NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False)), Context())


def _plain(value: object) -> str | bool | int | float:
    return value if isinstance(value, (bool, int, float)) else _text(str(value))


def _text(text: str) -> str:
    """Return the text as valid UTF-8; of one that is too long, only its beginning and end."""
    left_out = len(text) - _LONGEST
    if left_out > 0:
        half = _LONGEST // 2
        text = f"{text[:half]}\n… {left_out} characters left out …\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
