"""Structured logs: one line per lifecycle event, as a short message with `key=value` pairs or as JSON."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, get_args

from opentelemetry import trace
from opentelemetry.trace import SpanContext

from orcastream.telemetry.error_outline import outline
from orcastream.telemetry.settings import LogForm, Signal

EXPORT_LOGGERS: Final = ("opentelemetry.", "urllib3.", "requests.", "grpc.")
"""Loggers of telemetry exporters: an unreachable collector is worth a line once, not with every batch."""
_EXPORT_PAUSE_S: Final = 600.0
_REPEAT_PAUSE_S: Final = 60.0
_MOST_REMEMBERED: Final = 1000
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields logged in addition to the message."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def trace_fields(context: SpanContext) -> dict[str, str]:
    """Return `extra` for a line about a request whose span is not the current one; empty without a trace."""
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


def json_time(unix_s: float) -> str:
    """Return a time as in JSON lines: RFC 3339 with milliseconds, in local time with its offset."""
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="milliseconds")


def set_up_logging(level: str, form: LogForm, *, content: bool = False) -> None:
    """Send this process's logs to standard error; libraries log only from WARNING on.

    `content`: also log the messages of unexpected errors, which may contain parts of prompts.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(content) if form == "json" else _TextFormatter(content))
    handler.addFilter(_Seldom())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("orcastream").setLevel(level.upper())


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the extra fields and the current span's trace fields, unless the record names another span."""
    fields = extra_fields(record)
    return fields if "trace_id" in fields else {**fields, **trace_fields(trace.get_current_span().get_span_context())}


class _Formatter(logging.Formatter):
    def __init__(self, content: bool) -> None:
        super().__init__()
        self._content = content

    def told(self, error: Any) -> str:
        """Return the text for `exc_info`."""
        return self.formatException(error) if self._content or error[1] is None else outline(error[1])


class _TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower()} {record.getMessage()}{pairs}"
        return f"{line}\n{self.told(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": json_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.told(record.exc_info)
        return json.dumps(line, default=str)


class _Seldom(logging.Filter):
    """A filter that keeps a lasting problem from filling the log.

    The same warning, fields included, appears once per `_REPEAT_PAUSE_S` and then states how often it was left out;
    an exporter gets one line per `_EXPORT_PAUSE_S`, without its traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(EXPORT_LOGGERS):
            if record.exc_info:
                record.why, record.exc_info = str(record.exc_info[1]), None
            return self._due(record, _exporter_of(record), _EXPORT_PAUSE_S)
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        key = f"{record.name} {record.getMessage()} {extra_fields(record)} {error!r}"
        return self._due(record, key, _REPEAT_PAUSE_S)

    def _due(self, record: logging.LogRecord, key: str, pause_s: float) -> bool:
        now = time.monotonic()
        next_at, left_out = self._shown.get(key, (0.0, 0))
        if now < next_at:
            self._shown[key] = (next_at, left_out + 1)
            return False
        if len(self._shown) >= _MOST_REMEMBERED:
            self._shown.clear()
        self._shown[key] = (now + pause_s, 0)
        if left_out:
            record.left_out = left_out
        return True


def _exporter_of(record: logging.LogRecord) -> str:
    """Return the exporter that logs; over gRPC, those of all signals have one logger and name theirs in the line."""
    named = record.args if isinstance(record.args, tuple) else ()
    return " ".join([record.name, *(signal for signal in get_args(Signal) if signal in named)])


def _shown(value: object) -> str:
    """Return the value as one word, quoted if it contains spaces or line breaks."""
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text, ensure_ascii=False)
