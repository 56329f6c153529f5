"""Log records as OpenTelemetry's, for OTEL_LOGS_EXPORTER."""

import logging
from typing import Final

from opentelemetry._logs import LoggerProvider, LogRecord, SeverityNumber

from telemetry.logs import EXPORT_LOGGERS, extra_fields

_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)


class ExportHandler(logging.Handler):
    """Hands records to `provider`, with their extra fields as attributes. What exporters say of themselves is left out,
    or a failed export would be followed by the next one."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record; never waits."""
        if record.name.startswith(EXPORT_LOGGERS):
            return
        severity = next((number for level, number in _SEVERITIES if record.levelno >= level), SeverityNumber.DEBUG)
        attributes = {name: _plain(value) for name, value in extra_fields(record).items()}
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                severity_text=record.levelname,
                severity_number=severity,
                body=record.getMessage(),
                attributes=attributes,
                exception=record.exc_info[1] if record.exc_info else None,
            )
        )


def _plain(value: object) -> str | bool | int | float:
    return value if isinstance(value, (str, bool, int, float)) else str(value)
