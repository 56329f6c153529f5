"""The alert rules, their tests for promtool, and the names that recording rules create."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.telemetry.promql import EMITTED, Known, Series, check

ROOT = Path(__file__).parents[2]
RULES = ROOT / "telemetry" / "alerts" / "orcastream.rules.yaml"
RULE_TESTS = sorted(RULES.parent.glob("*.test.yaml"))


def _rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


RECORDS = [rule for rule in _rules() if "record" in rule]
ALERTS = [rule for rule in _rules() if "alert" in rule]


def expressions_of_rules() -> list[str]:
    """Return every expression of the file."""
    return [rule["expr"] for rule in (*RECORDS, *ALERTS)]


def known() -> dict[str, Known]:
    """Return what alerts may query: the metrics of the code and of the recording rules."""
    recorded = {rule["record"]: Known(Series.GAUGE, check(rule["expr"])) for rule in RECORDS}
    return {**EMITTED, **recorded}
