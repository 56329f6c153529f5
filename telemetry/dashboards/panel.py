"""One panel of a dashboard, in terms of Grafana's schema."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from orcastream.telemetry.dashboards.promql import quantile

PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${tempo}"}

INTERVAL: Final = "${every}"
"""Interval of every query: the pace of metrics, whatever the data source says. A rate's window is four of these."""
TOKENS_PER_SECOND: Final = "suffix: tok/s"


@dataclass(frozen=True, slots=True)
class Line:
    """One query; `legend` names its series, with `{{label}}` for a label's value."""

    query: str
    legend: str


def quantiles(histogram: str, labels: str) -> tuple[Line, ...]:
    """Return the median, 95th and 99th percentile of a histogram."""
    return tuple(Line(quantile(share, histogram, labels), f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99))


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over time, or the newest value (`kind` stat). `unit` is one of Grafana's; `top` is the axis's maximum.

    Values from `warn_from` on are colored. A table's lines are TraceQL searches.
    """

    title: str
    description: str
    unit: str
    lines: tuple[Line, ...]
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    width: int = 8
    stacked: bool = False
    top: float | None = None
    warn_from: float | None = None

    @property
    def height(self) -> int:
        """Height in rows of Grafana's grid."""
        return 4 if self.kind == "stat" else 8

    def to_grafana(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return the panel as JSON, at a position of the grid, which is 24 wide."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": TEMPO if self.kind == "table" else PROMETHEUS,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
            "targets": [self._target(line, chr(ord("A") + index)) for index, line in enumerate(self.lines)],
        }

    def _target(self, line: Line, ref_id: str) -> dict[str, Any]:
        if self.kind == "table":
            search = {"queryType": "traceql", "query": line.query, "tableType": "traces", "limit": 20}
            return {"refId": ref_id, "datasource": TEMPO, **search}
        is_stat = self.kind == "stat"  # a range would show the last value, however old
        once = {"instant": is_stat, "range": not is_stat, "interval": INTERVAL}
        return {"refId": ref_id, "datasource": PROMETHEUS, "expr": line.query, "legendFormat": line.legend, **once}

    def _defaults(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if self.warn_from is not None:
            steps.append({"color": "orange", "value": self.warn_from})
        defaults: dict[str, Any] = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.kind == "table":
            return defaults
        defaults["min"] = 0
        if self.top is not None:
            defaults["max"] = self.top
        if self.kind == "stat":
            return {**defaults, "color": {"mode": "thresholds"}}
        custom: dict[str, Any] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if self.warn_from is None else "dashed"},
        }
        return {**defaults, "color": {"mode": "palette-classic"}, "custom": custom}

    def _options(self) -> dict[str, Any]:
        if self.kind == "table":
            return {"showHeader": True, "cellHeight": "sm"}
        if self.kind == "stat":
            return {
                "colorMode": "value",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "textMode": "auto",
                "wideLayout": True,
            }
        return {
            "legend": {"calcs": ["mean", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
