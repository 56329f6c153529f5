"""Every panel queries metrics that the code emits, as their type allows, and Grafana can display it."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.stopping import FinishReason
from orcastream.telemetry.dashboards import COMPOSE, PACES, files
from orcastream.telemetry.names import METRICS, Metric
from orcastream.telemetry.prometheus import prometheus_series
from tests.telemetry.promql import EMITTED, Series, check, check_selector, matchers_in, series_in
from tests.telemetry.rules import expressions_of_rules

GATEWAY = Path(__file__).parents[2] / "gateway"
FILES = sorted(path for directory in PACES for path in directory.glob("*.json"))
UIDS = {"orcastream-service", "orcastream-engine", "orcastream-redis"}


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel, including those inside collapsed rows, without the rows themselves."""
    for panel in dashboard["panels"]:
        yield from panel["panels"] if panel["type"] == "row" else [panel]


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every PromQL query with its legend."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                yield target["expr"], target["legendFormat"]


ALL_QUERIES = sorted({query for path in FILES for query, _ in queries(load(path))})
each = pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")


def test_the_json_matches_the_source() -> None:
    kept = {path: path.read_text(encoding="utf-8") for path in FILES}
    assert kept == dict(files()), "regenerate them: python -m orcastream.telemetry.dashboards"


def test_uids_are_fixed() -> None:
    assert {load(path)["uid"] for path in FILES} == UIDS


@each
def test_every_query_finds_emitted_metrics(path: Path) -> None:
    for query, legend in queries(load(path)):
        labels = check(query)
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) == labels, (query, legend)


@each
@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"orcastream_(\w+)_total", r"orcastream_\1s_total"),
        (r"rate\((\w+?)(_bucket|_total|_count|_sum)\{", r"rate(orcastream_queue_length{"),
        (r"orcastream_(queue_length|engine_requests|worker_requests)\{", r"orcastream_tokens_total{"),
        (r'job=~"\$job"', r'pod=~"$job"'),
        (r"sum by \(([^)]*)\) \(", r"sum by (\1, request_id) ("),
    ],
    ids=["unknown metric", "rate of a gauge", "counter as it is", "unknown label", "grouped by an id"],
)
def test_a_wrong_query_is_detected(path: Path, pattern: str, instead: str) -> None:
    changed = [re.sub(pattern, instead, query, count=1) for query, _ in queries(load(path))]
    changed = [query for query in changed if query not in ALL_QUERIES]
    assert changed
    for query in changed:
        with pytest.raises(ValueError, match=r"."):
            check(query)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_displayed(metric: Metric) -> None:
    asked_for = {series for query in (*ALL_QUERIES, *expressions_of_rules()) for series in series_in(query)}
    assert asked_for & set(prometheus_series(metric))


def test_queried_label_values_exist() -> None:
    """Outcomes are error codes or finish reasons; refusals that count as failures are codes of the gateway."""
    sources = "".join(path.read_text(encoding="utf-8") for path in GATEWAY.glob("*.py"))
    exist = {"orcastream_outcome": {*ErrorCode, *FinishReason}, "error_type": set(re.findall(r'"(\w+)"', sources))}
    asked_for = [matcher for query in (*ALL_QUERIES, *expressions_of_rules()) for matcher in matchers_in(query)]
    parts = {(label, part) for _, label, value in asked_for if label in exist for part in value.split("|")}
    assert {label for label, _ in parts} == set(exist)
    for label, part in parts:
        assert any(re.fullmatch(part, value) for value in exist[label]), part


@each
def test_variables(path: Path) -> None:
    dashboard = load(path)
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert {"job", "instance", "model", "class"} <= set(variables)
    for variable in variables.values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert found, variable
            assert found[2] in check_selector(found[1])
            assert variable["query"]["query"] == variable["definition"]
            assert variable["datasource"]["uid"] == "${datasource}"
    used = set(re.findall(r"\$(\w+)", " ".join(query for query, _ in queries(dashboard))))
    assert used - {"__rate_interval"} <= set(variables)


@each
def test_every_target_states_the_interval_of_metrics(path: Path) -> None:
    """Otherwise Grafana computes rates over four times the data source's interval, which is a minute in Compose."""
    dashboard = load(path)
    [every] = [variable for variable in dashboard["templating"]["list"] if variable["name"] == "every"]
    assert every["current"]["value"] == PACES[path.parent].every
    assert every["current"] in every["options"]
    assert every["query"].split(",") == [option["value"] for option in every["options"]]
    for panel in panels(dashboard):
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                assert target["interval"] == "${every}", panel["title"]
                is_stat = panel["type"] == "stat"
                assert (target["instant"], target["range"]) == (is_stat, not is_stat), "a stat shows the current value"


def test_both_sets_differ_only_in_their_interval() -> None:
    by_name: dict[str, list[object]] = {}
    for path in FILES:
        by_name.setdefault(path.name, []).append(list(panels(load(path))))
    assert all(one == other for one, other in by_name.values())


def test_a_change_is_shown_correctly_within_15_s_in_compose() -> None:
    """A rate's window is four intervals, and the points of a line are one interval apart."""
    pace = PACES[COMPOSE]
    assert 4 * pace.every_s + pace.delay_s <= 15
    for path in COMPOSE.glob("*.json"):
        dashboard = load(path)
        assert dashboard["timepicker"] == {"nowDelay": f"{pace.delay_s}s"}
        assert int(dashboard["refresh"].removesuffix("s")) <= 5


@pytest.mark.parametrize("query", [*ALL_QUERIES, *expressions_of_rules()])
def test_gauges_show_only_live_processes(query: str) -> None:
    """Over OTLP, Prometheus is not told that a process is gone: its gauges would remain for five minutes."""
    gauges = {name for name in series_in(query) if name in EMITTED and EMITTED[name].series is Series.GAUGE}
    assert gauges <= set(re.findall(r"last_over_time\((\w+)", query))


@each
def test_datasources_are_variables(path: Path) -> None:
    dashboard = load(path)
    variables = {variable["name"] for variable in dashboard["templating"]["list"] if variable["type"] == "datasource"}
    sources = [part["datasource"] for panel in panels(dashboard) for part in (panel, *panel["targets"])]
    assert {source["uid"] for source in sources} <= {f"${{{name}}}" for name in variables}


@each
def test_panels_are_readable(path: Path) -> None:
    for panel in panels(load(path)):
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


@each
def test_panels_do_not_overlap(path: Path) -> None:
    dashboard = load(path)
    numbers = [panel["id"] for panel in (*dashboard["panels"], *panels(dashboard))]
    assert set(numbers) == set(range(1, max(numbers) + 1))
    for one, other in combinations([panel["gridPos"] for panel in dashboard["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels(dashboard))


@each
def test_the_dashboards_link_to_each_other(path: Path) -> None:
    dashboard = load(path)
    (link,) = dashboard["links"]
    assert link["tags"] == dashboard["tags"] == ["orcastream"]
    assert link["keepTime"]
    assert link["includeVars"]
