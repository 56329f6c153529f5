"""The autoscalers query keys and metrics that the service has."""

import pytest
import yaml

from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.keys import CLASSES
from orcastream.telemetry.names import QUEUE_LENGTH, Attribute
from orcastream.telemetry.prometheus import prometheus_label, prometheus_name
from orcastream.worker.settings import WorkerSettings
from tests.k8s.kustomization import K8S, OVERLAYS, Document, find, load, of_kind, overlay, read
from tests.k8s.pods import GATEWAY, WORKER, container, probe_s, settings


@pytest.fixture(scope="module")
def prod() -> list[Document]:
    return overlay("prod")


def scaled_object(documents: list[Document]) -> Document:
    (found,) = of_kind(documents, "ScaledObject")
    return found["spec"]


def alerts(documents: list[Document]) -> Document:
    (rule,) = of_kind(documents, "PrometheusRule")
    return {one["alert"]: one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one}


def test_keda_reads_the_request_stream_of_every_class(prod: list[Document]) -> None:
    keys = settings(prod, WORKER, WorkerSettings).keys()
    triggers = scaled_object(prod)["triggers"]
    assert [trigger["name"] for trigger in triggers] == list(CLASSES)
    assert [trigger["metadata"]["stream"] for trigger in triggers] == [keys.requests(name) for name in CLASSES]
    assert {trigger["type"] for trigger in triggers} == {"redis-streams"}
    for trigger in triggers:  # with a consumer group KEDA reads its lag, which is nil once entries are deleted
        assert "consumerGroup" not in trigger["metadata"]


def test_the_component_names_the_streams_of_the_base() -> None:
    keys = settings(read(K8S / "base"), WORKER, WorkerSettings).keys()
    (component,) = load(K8S / "components/autoscaling/scaled-object.yaml")
    streams = [trigger["metadata"]["stream"] for trigger in component["spec"]["triggers"]]
    assert streams == [keys.requests(name) for name in CLASSES]


def test_scaling_uses_the_sum_of_the_classes(prod: list[Document]) -> None:
    scaled = scaled_object(prod)
    modifiers = scaled["advanced"]["scalingModifiers"]
    assert modifiers["formula"].split(" + ") == list(CLASSES)
    worker = settings(prod, WORKER, WorkerSettings)
    target = int(modifiers["target"])  # KEDA's fallback refuses a fraction
    assert target == worker.max_batch_size * 3 // 4
    # The queue's bound must let the length grow until the last worker is requested.
    assert target * scaled["maxReplicaCount"] <= worker.max_queue_depth
    assert scaled["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert 0 < scaled["fallback"]["replicas"] <= scaled["maxReplicaCount"]


def test_a_service_that_scales_to_zero_accepts_requests_without_a_worker(prod: list[Document]) -> None:
    assert scaled_object(prod)["minReplicaCount"] == 0
    assert not settings(prod, GATEWAY, GatewaySettings).require_worker


def test_workers_scaled_to_zero_raise_no_alert(prod: list[Document]) -> None:
    assert "OrcastreamNoWorker" not in alerts(prod)


@pytest.mark.parametrize("name", ["prod", "cpu"])
def test_fewer_workers_are_no_lost_capacity_under_autoscaling(name: str) -> None:
    told = alerts(overlay(name))
    assert "OrcastreamCapacityLost" not in told
    assert "OrcastreamQueueOld" in told, "which reports too few workers"


def test_a_request_that_starts_the_service_outlives_a_workers_start_and_the_alert(prod: list[Document]) -> None:
    start_s = probe_s(container(prod, WORKER)["startupProbe"])
    alert_s = int(alerts(prod)["OrcastreamNoWorkerForQueue"]["for"].removesuffix("m")) * 60
    assert start_s < alert_s < settings(prod, GATEWAY, GatewaySettings).default_timeout_s


def test_the_plain_autoscaler_queries_an_existing_metric() -> None:
    documents = overlay("cpu")
    autoscaler = find(documents, "HorizontalPodAutoscaler", WORKER)
    (metric,) = autoscaler["spec"]["metrics"]
    name = metric["external"]["metric"]["name"]
    assert name == prometheus_name(QUEUE_LENGTH)
    rules = yaml.safe_load((K8S / "components/autoscaling-hpa/adapter-rules.yaml").read_text(encoding="utf-8"))
    (rule,) = rules["rules"]["external"]
    label = prometheus_label(Attribute.REQUEST_CLASS)
    assert rule["name"]["as"] == name
    assert rule["metricsQuery"] == f"sum(max by ({label}) ({name}{{<<.LabelMatchers>>}}))"
    worker = settings(documents, WORKER, WorkerSettings)
    assert int(metric["external"]["target"]["averageValue"]) == worker.max_batch_size * 3 // 4
    assert settings(documents, GATEWAY, GatewaySettings).require_worker


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_rollout_leaves_a_worker_if_requests_are_refused_without_one(name: str) -> None:
    documents = overlay(name)
    worker = find(documents, "Deployment", WORKER)["spec"]
    least = worker.get("replicas", 0)
    for autoscaler in of_kind(documents, "HorizontalPodAutoscaler"):
        if autoscaler["spec"]["scaleTargetRef"]["name"] == WORKER:
            least = autoscaler["spec"]["minReplicas"]
    if settings(documents, GATEWAY, GatewaySettings).require_worker:
        assert least > away(worker["strategy"]["rollingUpdate"]["maxUnavailable"], least)


def away(bound: int | str, replicas: int) -> int:
    """Return how many pods a rollout may remove; Kubernetes rounds a share down."""
    return int(bound.removesuffix("%")) * replicas // 100 if isinstance(bound, str) else bound


def test_a_rollout_starts_the_new_worker_before_the_last_one_leaves(prod: list[Document]) -> None:
    update = find(prod, "Deployment", WORKER)["spec"]["strategy"]["rollingUpdate"]
    assert update["maxSurge"] == 1
    for replicas in range(1, scaled_object(prod)["maxReplicaCount"] + 1):
        assert replicas - away(update["maxUnavailable"], replicas) >= 1
    assert away(update["maxUnavailable"], 4) == 1  # so that the rollout continues if no GPU is free


@pytest.mark.parametrize("name", ["prod", "cpu"])
def test_gateways_are_scaled_by_the_single_core_of_an_event_loop(name: str) -> None:
    documents = overlay(name)
    spec = find(documents, "HorizontalPodAutoscaler", GATEWAY)["spec"]
    (metric,) = spec["metrics"]
    assert (metric["type"], metric["resource"]["name"]) == ("Resource", "cpu")
    target = cores(metric["resource"]["target"]["averageValue"])
    resources = container(documents, GATEWAY)["resources"]
    assert cores(resources["requests"]["cpu"]) <= target < 1 <= cores(resources["limits"]["cpu"])
    assert 1 < spec["minReplicas"] < spec["maxReplicas"]
    assert settings(documents, GATEWAY, GatewaySettings).gateway_workers == 1


def cores(quantity: str) -> float:
    """Return a Kubernetes quantity of CPU in cores: 600m, 2."""
    return int(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


@pytest.mark.parametrize("name", ["prod", "cpu"])
def test_an_apply_does_not_reset_the_autoscalers_number(name: str) -> None:
    deployments = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay(name), "Deployment")}
    assert "replicas" not in deployments[WORKER]
    assert "replicas" not in deployments[GATEWAY]
