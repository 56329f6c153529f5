"""The shipped dashboards' queries, filled in as Grafana fills them in, and what they answer."""

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
    """Every Prometheus target of every dashboard."""
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
    """The expression that reaches Prometheus where the variable `every` is `every_s` and all others are All.

    Zoomed in, Grafana's step is the target's interval, and $__rate_interval four of them, whatever the data source
    says.
    """
    assert query.interval == "${every}", "else the data source's own interval counts, which nobody has set"
    window = f"{4 * every_s * 1000:.0f}ms"
    return re.sub(r"\$(job|instance|model|class)\b", ".*", query.expression).replace("$__rate_interval", window)


Said = dict[tuple[str, str], dict[str, float]]
"""What panels say: by dashboard and title, the newest value of each line that has one, by its legend."""


def look(server: PrometheusServer, every_s: float) -> Said:
    """Every panel now."""
    said: Said = {}
    for query in queries():
        said.setdefault((query.dashboard, query.panel), {}).update(_lines(server, query, every_s))
    return said


def look_at(server: PrometheusServer, every_s: float, dashboard: str, panel: str) -> dict[str, float]:
    """One panel of one query now."""
    [query] = (query for query in queries() if (query.dashboard, query.panel) == (dashboard, panel))
    return _lines(server, query, every_s)


def _lines(server: PrometheusServer, query: Query, every_s: float) -> dict[str, float]:
    """The lines of a query where a panel ends that is looked at now: over OTLP a little before (`Pace.delay_s`)."""
    lines: dict[str, float] = {}
    ends_s = time.time() - (EXPORTED.delay_s if server.pushed else 0)
    for labels, value in server.query(filled_in(query, every_s), ends_s):
        if not math.isnan(value):
            legend = re.sub(r"\{\{(\w+)\}\}", lambda name, labels=labels: labels.get(name[1], ""), query.legend)  # type: ignore[misc]
            lines[legend] = value
    return lines
