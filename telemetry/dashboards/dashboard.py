"""One dashboard: rows of panels, the variables above them, and links to the other dashboards."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from orcastream.telemetry.dashboards.pace import Pace
from orcastream.telemetry.dashboards.panel import PROMETHEUS, Panel

TAG: Final = "orcastream"
SCHEMA_VERSION: Final = 41
"""That of Grafana 12; newer versions migrate it, Grafana 11 can read it."""
_GRID_WIDTH: Final = 24


@dataclass(frozen=True, slots=True)
class Variable:
    """A selector above the panels for the values of one label. "All" also matches metrics without the label."""

    name: str
    label: str
    query: str

    def to_grafana(self) -> dict[str, Any]:
        """Return the variable as JSON."""
        return {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": PROMETHEUS,
            "definition": self.query,
            "query": {"query": self.query, "refId": self.name, "qryType": 1},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }


VARIABLES: Final = (
    Variable("job", "Job", "label_values(orcastream_redis_commands_total, job)"),
    Variable("instance", "Instance", 'label_values(orcastream_redis_commands_total{job=~"$job"}, instance)'),
    Variable("model", "Model", "label_values(orcastream_queue_length, gen_ai_request_model)"),
    Variable(
        "class",
        "Class",
        'label_values(orcastream_queue_length{gen_ai_request_model=~"$model"}, orcastream_request_class)',
    ),
)


def _datasource(name: str, label: str, kind: str) -> dict[str, Any]:
    return {"name": name, "label": label, "type": "datasource", "query": kind, "refresh": 1, "current": {}}


@dataclass(frozen=True, slots=True)
class Row:
    """A row across the dashboard with panels below it; a collapsed row queries nothing until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False

    def to_grafana(self, numbers: Iterator[int], y: int) -> tuple[list[dict[str, Any]], int]:
        """Return the row and its panels as JSON, and the next free line of the grid."""
        number, top, x, height = next(numbers), y, 0, 0
        y += 1
        panels = []
        for panel in self.panels:
            if x + panel.width > _GRID_WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(panel.to_grafana(next(numbers), x, y))
            x, height = x + panel.width, max(height, panel.height)
        row: dict[str, Any] = {"id": number, "type": "row", "title": self.title, "collapsed": self.collapsed}
        row["gridPos"] = {"h": 1, "w": _GRID_WIDTH, "x": 0, "y": top}
        row["panels"] = panels if self.collapsed else []
        return ([row] if self.collapsed else [row, *panels]), top + 1 if self.collapsed else y + height


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard with a permanent uid, so that links to it remain valid."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    traces: bool = False

    @property
    def file_name(self) -> str:
        """The name of its JSON file."""
        return f"{self.uid}.json"

    def to_json(self, pace: Pace) -> str:
        """Return the text of its JSON file, for metrics that arrive at `pace`."""
        return json.dumps(self.to_grafana(pace), indent=2, ensure_ascii=False) + "\n"

    def to_grafana(self, pace: Pace) -> dict[str, Any]:
        """Return the dashboard as JSON."""
        sources = [_datasource("datasource", "Prometheus", "prometheus")]
        if self.traces:
            sources.append(_datasource("tempo", "Tempo", "tempo"))
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": pace.refresh,
            "time": {"from": pace.shown, "to": "now"},
            "timepicker": pace.timepicker(),
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [_links()],
            "templating": {"list": [*sources, *(variable.to_grafana() for variable in VARIABLES), pace.variable()]},
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        numbers, y = iter(range(1, 1000)), 0
        for row in self.rows:
            panels, y = row.to_grafana(numbers, y)
            yield from panels


def _links() -> dict[str, Any]:
    """Return links to all dashboards with the tag, which keep time range and variables."""
    return {
        "type": "dashboards",
        "title": "Orcastream",
        "tags": [TAG],
        "asDropdown": False,
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }
