"""KEDA, prometheus-operator, cert-manager and the Gateway API accept the custom resources."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import yaml

from orcastream.telemetry.dashboards import DASHBOARDS
from orcastream.telemetry.dashboards.pace import SCRAPED
from tests.k8s.custom_resources import custom, faults, validators
from tests.k8s.kustomization import OVERLAYS, Document, find, of_kind, overlay
from tests.k8s.prometheus_rule import RULES, TARGET, prometheus_rule


@pytest.mark.parametrize("name", OVERLAYS)
def test_custom_resources_are_valid(name: str) -> None:
    for document in custom(overlay(name)):
        assert not faults(document), document["metadata"]["name"]


def test_every_schema_is_used() -> None:
    used = {(one["apiVersion"], one["kind"]) for name in OVERLAYS for one in custom(overlay(name))}
    assert used == set(validators())


def misspell(scaled: Document) -> None:
    scaled["spec"]["maxReplicasCount"] = scaled["spec"].pop("maxReplicaCount")


def give_a_number(scaled: Document) -> None:
    scaled["spec"]["advanced"]["scalingModifiers"]["target"] = 24


def leave_out(scaled: Document) -> None:
    del scaled["spec"]["fallback"]["replicas"]


@pytest.mark.parametrize("spoil", [misspell, give_a_number, leave_out])
def test_faults_are_found(spoil: Callable[[Document], None]) -> None:
    scaled = deepcopy(find(overlay("prod"), "ScaledObject", "orcastream-worker"))
    assert not faults(scaled)
    spoil(scaled)
    assert faults(scaled)


def test_grafana_finds_every_dashboard() -> None:
    documents = overlay("cpu")
    label = [one for one in of_kind(documents, "ConfigMap") if "grafana_dashboard" in one["metadata"].get("labels", {})]
    found = {name: text for one in label for name, text in one["data"].items()}
    assert found == {dashboard.file_name: dashboard.to_json(SCRAPED) for dashboard in DASHBOARDS}
    for one in label:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert sum(len(text.encode()) for text in one["data"].values()) < 2**18  # limit of kubectl's annotation


def test_scrapes_are_as_frequent_as_the_dashboards_expect() -> None:
    documents = overlay("cpu")
    of_pods = [one["spec"]["podMetricsEndpoints"] for one in of_kind(documents, "PodMonitor")]
    of_services = [one["spec"]["endpoints"] for one in of_kind(documents, "ServiceMonitor")]
    intervals = [endpoint["interval"] for endpoints in (*of_pods, *of_services) for endpoint in endpoints]
    assert intervals == [SCRAPED.every] * 2


def test_the_alerts_in_the_cluster_match_those_of_telemetry() -> None:
    assert TARGET.read_text(encoding="utf-8") == prometheus_rule(), "run: python -m tests.k8s.prometheus_rule"
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    assert yaml.safe_load(prometheus_rule())["spec"]["groups"] == rules
