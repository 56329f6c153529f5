"""Only named traffic is allowed, and it includes everything that the service needs."""

from typing import Any

import pytest

from orcastream.gateway.openai.document import document
from orcastream.gateway.settings import GatewaySettings
from orcastream.worker.settings import WorkerSettings
from tests.k8s.kustomization import OVERLAYS, Document, of_kind, overlay
from tests.k8s.pods import GATEWAY, WORKER, environment, settings

SERVICE = {"app.kubernetes.io/name": "orcastream"}


@pytest.fixture(params=OVERLAYS)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return overlay(request.param)


def policies(documents: list[Document]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in of_kind(documents, "NetworkPolicy")}


def ports(policy: Any, direction: str) -> set[object]:
    return {port["port"] for rule in policy[direction] for port in rule["ports"]}


def test_everything_is_denied_first(documents: list[Document]) -> None:
    assert policies(documents)["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_only_policies_that_name_peers_and_ports_open_something(documents: list[Document]) -> None:
    for name, policy in policies(documents).items():
        for rule in (*policy.get("ingress", ()), *policy.get("egress", ())):
            assert rule.get("from") or rule.get("to"), name
            assert rule["ports"], name


def test_dns_and_redis_are_reachable(documents: list[Document]) -> None:
    for name, port in (("dns", 53), ("redis-egress", 6379)):
        policy = policies(documents)[name]
        assert policy["podSelector"]["matchLabels"] == SERVICE
        assert port in ports(policy, "egress")


def test_the_gateway_is_reachable_on_its_port(documents: list[Document]) -> None:
    policy = policies(documents)["gateway-ingress"]
    assert policy["podSelector"]["matchLabels"] == {**SERVICE, "app.kubernetes.io/component": "gateway"}
    assert ports(policy, "ingress") == {"http"}


@pytest.mark.parametrize("name", ["prod", "cpu"])
def test_metrics_are_served_on_the_scraped_port(name: str) -> None:
    documents = overlay(name)
    gateway = settings(documents, GATEWAY, GatewaySettings)
    worker = settings(documents, WORKER, WorkerSettings)
    assert gateway.metrics
    assert ports(policies(documents)["scrape-ingress"], "ingress") == {gateway.port, worker.admin_port}


@pytest.mark.parametrize("name", ["prod", "cpu"])
def test_the_collector_is_reachable(name: str) -> None:
    documents = overlay(name)
    for deployment in (GATEWAY, WORKER):
        endpoint = environment(documents, deployment)["OTEL_EXPORTER_OTLP_ENDPOINT"]
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        assert int(port) in ports(policies(documents)["otlp-egress"], "egress")
        assert host.split(".")[1] == "monitoring"


def test_keda_can_reach_the_redis_of_dev() -> None:
    (rule,) = policies(overlay("dev"))["redis-ingress"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}} in rule["from"]


def test_https_leads_to_the_api_alone() -> None:
    [route] = of_kind(overlay("prod"), "HTTPRoute")
    matches = [match["path"] for rule in route["spec"]["rules"] for match in rule["matches"]]
    assert {path["type"] for path in matches} == {"PathPrefix", "Exact"}
    paths = set(document()["paths"])
    inside = {path for path in paths if path.startswith("/health")} | {"/docs", "/openapi.json"}
    assert {path for path in paths if any(_matches(path, match) for match in matches)} == paths - inside


def _matches(path: str, match: dict[str, str]) -> bool:
    prefix = match["type"] == "PathPrefix" and path.startswith(f"{match['value']}/")
    return prefix or path == match["value"]
