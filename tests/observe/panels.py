"""The shipped dashboards' queries, filled in as by Grafana, and their results."""

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from orcastream.telemetry.dashboards import COMPOSE
from orcastream.telemetry.dashboards.pace import EXPORTED
from tests.observe.server import PrometheusServer


@dataclass(frozen=True)
class Query:
    """One target of a panel."""

    dashboard: str
    panel: str
    expression: str
    legend: str
    interval: str
    instant: bool


@cache
def queries() -> tuple[Query, ...]:
    """Return every Prometheus target of every dashboard."""
    return tuple(_queries())


def _queries() -> Iterator[Query]:
    for path in sorted(COMPOSE.glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                if target["datasource"]["type"] == "prometheus":
                    name = dashboard["uid"].removeprefix("orcastream-")
                    yield _query(name, panel["title"], target)


def _query(dashboard: str, panel: str, target: dict[str, Any]) -> Query:
    interval, instant = target["interval"], target["instant"]
    return Query(dashboard, panel, target["expr"], target["legendFormat"], interval, instant)


def filled_in(query: Query, every_s: float) -> str:
    """Return the expression that reaches Prometheus if the variable `every` is `every_s` and all others are All.

    Zoomed in, Grafana's step is the target's interval, and $__rate_interval four of them, whatever the data source
    says.
    """
    assert query.interval == "${every}", "otherwise the data source's own interval applies, which is not set"
    window = f"{4 * every_s * 1000:.0f}ms"
    return re.sub(r"\$(job|instance|model|class)\b", ".*", query.expression).replace("$__rate_interval", window)


Said = dict[tuple[str, str], dict[str, float]]
"""What panels say: by dashboard and title, the newest value of each line that has one, by its legend."""


def look(server: PrometheusServer, every_s: float) -> Said:
    """Return the current result of every panel."""
    said: Said = {}
    for query in queries():
        said.setdefault((query.dashboard, query.panel), {}).update(_lines(server, query, every_s))
    return said


def look_at(server: PrometheusServer, every_s: float, dashboard: str, panel: str) -> dict[str, float]:
    """Return the current result of one panel with one query."""
    [query] = (query for query in queries() if (query.dashboard, query.panel) == (dashboard, panel))
    return _lines(server, query, every_s)


def _lines(server: PrometheusServer, query: Query, every_s: float) -> dict[str, float]:
    """Return the lines of a query at the end of a panel viewed now: over OTLP a little earlier (`Pace.delay_s`)."""
    lines: dict[str, float] = {}
    ends_s = time.time() - (EXPORTED.delay_s if server.pushed else 0)
    for labels, value in server.query(filled_in(query, every_s), ends_s):
        if not math.isnan(value):
            legend = re.sub(r"\{\{(\w+)\}\}", lambda name, labels=labels: labels.get(name[1], ""), query.legend)  # type: ignore[misc]
            lines[legend] = value
    return lines
