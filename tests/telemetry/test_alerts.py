"""Every alert queries metrics that the code emits, is explained in the documentation, and fires when it should."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from orcastream.schemas.errors import SERVICE_FAULTS
from tests.telemetry.prometheus_binaries import NONE_FOUND, PROMETHEIS, Prometheus
from tests.telemetry.promql import check
from tests.telemetry.rules import ALERTS, RECORDS, ROOT, RULE_TESTS, RULES, known
from tests.telemetry.runbooks import HOME, with_runbooks

by_name = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


@by_name
def test_alerts_query_existing_metrics(alert: dict[str, Any]) -> None:
    labels = check(alert["expr"], known())
    told = {name for text in alert["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
    assert told == labels


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["record"])
def test_records_are_named_by_their_content(record: dict[str, Any]) -> None:
    assert check(record["expr"]) == {"gen_ai_request_model"}
    level, _, operation = record["record"].split(":")
    window = re.search(r"(\d+[mh])$", operation)
    assert level == "model"
    assert operation == "sum" or window
    assert set(re.findall(r"(?:\[|offset )(\w+)", record["expr"])) - {"1d"} == {window[1] if window else "90s"}


def test_alerts_count_ends_caused_by_the_service() -> None:
    found = {name for rule in RECORDS for name in re.findall(r'orcastream_outcome=~"([^"]+)"', rule["expr"])}
    assert {frozenset(names.split("|")) for names in found} == {frozenset(SERVICE_FAULTS)}


@by_name
def test_alerts_have_instructions(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    home, found, path = page.partition("/blob/main/")
    assert (home, found) == (HOME, "/blob/main/"), "absolute: the on-call engineer has no copy of the project at hand"
    assert f"\n### {alert['alert']}\n" in (ROOT / path).read_text(encoding="utf-8")


def test_every_runbook_begins_with_the_projects_home() -> None:
    for path, text in with_runbooks():
        assert path.read_text(encoding="utf-8") == text, "regenerate them: python -m tests.telemetry.runbooks"


@by_name
def test_alerts_are_tested_firing_and_silent(alert: dict[str, Any]) -> None:
    """The tests for promtool have a time at which the alert fires, and one at which it does not."""
    asked = f'ALERTS{{alertname="{alert["alert"]}", alertstate="firing"}}'
    tests = [test for path in RULE_TESTS for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]
    moments = [moment for test in tests for moment in test["promql_expr_test"] if moment["expr"] == asked]
    assert {bool(moment.get("exp_samples")) for moment in moments} == {True, False}


@pytest.mark.parametrize("prometheus", PROMETHEIS or [None], ids=lambda one: one.version if one else "none")
@pytest.mark.parametrize(
    "arguments", [("check", "rules", RULES), ("test", "rules", *RULE_TESTS)], ids=["check", "test"]
)
def test_promtool(prometheus: Prometheus | None, arguments: tuple[Any, ...]) -> None:
    if prometheus is None:
        pytest.skip(NONE_FOUND)
    done = subprocess.run([prometheus.promtool, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
