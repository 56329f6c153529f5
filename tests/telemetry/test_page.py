"""docs/telemetry.md lists exactly what the code emits."""

import re
from pathlib import Path

from orcastream.telemetry.names import METRICS, Attribute, Outcome, Span, SpanEvent
from orcastream.telemetry.tables import metrics_tables

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
OF_THE_RESOURCE = {"service.instance.id", "service.version"}


def _first_cells(heading: str) -> set[str]:
    """Return the code in the first column of the tables below a heading."""
    section = re.split(r"^#{2,3} ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row)}


def test_the_tables_of_metrics_match_the_code() -> None:
    shown = PAGE.split("<!-- metrics -->")[1].split("<!-- /metrics -->")[0]
    assert shown.strip() == metrics_tables(), "regenerate them: python -m orcastream.telemetry.tables"


def test_every_span_event_and_outcome_is_listed() -> None:
    spans = {name.partition(" ")[0] for name in _first_cells("Traces")} - {"POST"}
    assert spans == {str(span) for span in Span}
    assert _first_cells("Events") == {str(event) for event in SpanEvent}
    attributes_and_outcomes = _first_cells("Attributes")
    assert attributes_and_outcomes == {*map(str, Outcome), *map(str, _on_spans())}


def _on_spans() -> set[Attribute]:
    """Return attributes of spans; those of events, and of metrics alone, are listed elsewhere."""
    others = {Attribute.CHUNK_TOKENS, Attribute.GAP, Attribute.PHASE, Attribute.STATE, Attribute.TOKEN_TYPE}
    return set(Attribute) - others


def test_no_other_name_is_listed() -> None:
    named = set(re.findall(r"`((?:gen_ai|messaging|http|orcastream|service|error)\.[a-z_.]*[a-z_])`", PAGE))
    known = {*map(str, Attribute), *(metric.name for metric in METRICS)}
    assert named == known | OF_THE_RESOURCE
