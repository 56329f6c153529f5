"""Log lines: one per event, with their trace, and few while a fault lasts."""

import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from orcastream.telemetry.logs import set_up_logging, trace_fields
from orcastream.telemetry.settings import LogForm

SPAN = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(1))
TRACE = {"trace_id": f"{0xA1:032x}", "span_id": f"{0xB2:016x}"}

Lines = Callable[[], list[str]]


@pytest.fixture
def start(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[LogForm], Lines]]:
    """Set up logging as a service does; return what it has written since."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def set_up(form: LogForm) -> Lines:
        set_up_logging("info", form)
        return lambda: capsys.readouterr().err.splitlines()

    yield set_up
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("orcastream").setLevel(logging.NOTSET)


def test_lines_carry_the_current_trace_or_their_subjects_trace(start: Callable[[LogForm], Lines]) -> None:
    lines = start("json")
    log = logging.getLogger("orcastream.test")
    log.info("without")
    with use_span(NonRecordingSpan(SPAN)):
        log.info("inside", extra={"request": "r1"})
    log.info("about", extra=trace_fields(SPAN))
    without, inside, about = map(json.loads, lines())
    assert "trace_id" not in without
    assert inside.items() >= {"message": "inside", "level": "info", "request": "r1", **TRACE}.items()
    assert about.items() >= TRACE.items()


def test_the_time_of_a_json_line_is_rfc_3339_with_milliseconds(start: Callable[[LogForm], Lines]) -> None:
    lines = start("json")
    logging.getLogger("orcastream.test").info("now")
    [line] = map(json.loads, lines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line["time"])


def test_a_text_line_is_one_line_of_words(start: Callable[[LogForm], Lines]) -> None:
    lines = start("text")
    with use_span(NonRecordingSpan(SPAN)):
        logging.getLogger("orcastream.test").warning("lost", extra={"why": "two\nlines", "count": 3, "none": ""})
    (line,) = lines()
    assert line.split(" ", 1)[1] == (
        f'warning lost why="two\\nlines" count=3 none="" trace_id={TRACE["trace_id"]} span_id={TRACE["span_id"]}'
    )


def test_a_lasting_fault_is_logged_occasionally(
    start: Callable[[LogForm], Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = start("text")
    now = 1000.0
    monkeypatch.setattr("orcastream.telemetry.logs.time.monotonic", lambda: now)
    log, exporter = logging.getLogger("orcastream.test"), logging.getLogger("opentelemetry.exporter.test")
    for _ in range(3):
        log.warning("Redis cannot be reached", extra={"why": "refused"})
        log.warning("Redis cannot be reached", extra={"why": "no route"})
        log.info("event")
        try:
            raise ConnectionError("nobody there")
        except ConnectionError:
            exporter.exception("export number %s failed", now)
        now += 1
    told = [line.split(" ", 1)[1] for line in lines()]
    assert told == [
        "warning Redis cannot be reached why=refused",
        'warning Redis cannot be reached why="no route"',
        "info event",
        'error export number 1000.0 failed why="nobody there"',
        "info event",
        "info event",
    ]
    now += 60
    log.warning("Redis cannot be reached", extra={"why": "refused"})
    exporter.error("export failed")
    assert [line.split(" ", 1)[1] for line in lines()] == ["warning Redis cannot be reached why=refused left_out=2"]


def test_another_error_is_no_repetition(start: Callable[[LogForm], Lines]) -> None:
    lines = start("text")
    log = logging.getLogger("orcastream.test")
    for error in (KeyError("one"), KeyError("two"), KeyError("two")):
        log.error("a request failed", exc_info=error)
    assert [line for line in lines() if "KeyError" in line] == ["KeyError", "KeyError"]


def test_error_messages_are_logged_only_on_request(
    start: Callable[[LogForm], Lines], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = start("json")
    log = logging.getLogger("orcastream.test")
    cause = KeyError("the cause")
    error = ExceptionGroup("the group", [ValueError("a member"), ConnectionRefusedError(111, "Connection refused")])
    error.__cause__ = cause
    cause.__context__ = error  # a cycle, as retries create
    log.error("failed", exc_info=error)
    assert json.loads(lines()[0])["exception"].split("\n") == [
        "KeyError",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "ExceptionGroup",
        "ValueError",
        "ConnectionRefusedError: Connection refused",
    ]
    set_up_logging("info", "json", content=True)
    log.error("failed", exc_info=error)
    told = capsys.readouterr().err
    assert all(text in told for text in ("the cause", "the group", "a member"))
