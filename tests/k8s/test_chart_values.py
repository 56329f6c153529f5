"""Every value of the chart has its described effect, and unknown values are refused."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from tests.k8s.chart.values import values
from tests.k8s.kustomization import Document, find

pytest.importorskip("helm_python", reason="`make k8s-test` installs Helm")
from tests.k8s.chart.helm import Refused, merged, rendered

DIGEST = "sha256:" + "0" * 64
KEDA = {"worker": {"autoscaling": {"mode": "keda"}}}
HPA = {"worker": {"autoscaling": {"mode": "hpa"}}}
MORE_MODELS = {"ORCASTREAM_MORE_MODELS": '["small=/models/small"]'}
GATEWAY_HPA = {"gateway": {"autoscaling": {"enabled": True}}}
MONITORING = {"monitoring": {"enabled": True}}
CACHE = {"modelCache": {"enabled": True}}
HTTPS = {"https": {"enabled": True}}
NODE = [{"key": "a", "operator": "Exists"}]


@dataclass(frozen=True)
class Effect:
    """A value set to `to`, with others: then the node at `at` (KIND/NAME/key/...) is `gives`, otherwise not."""

    to: Any
    at: str
    gives: Any = None
    others: dict[str, Any] = field(default_factory=dict)


def process(role: str) -> dict[str, Effect]:
    """Return the cases that gateway and worker share."""
    deployment = f"Deployment/orcastream-{role}"
    spec = f"{deployment}/spec/template/spec"
    main = f"{spec}/containers/0"
    image = f"orcastream-{role}"
    resources = {"limits": {"cpu": "3"}}
    return {
        "image.repository": Effect("r/x", f"{main}/image", "r/x:0.1.0"),
        "image.tag": Effect("9", f"{main}/image", f"{image}:9"),
        "image.digest": Effect(DIGEST, f"{main}/image", f"{image}@{DIGEST}"),
        "image.pullPolicy": Effect("Never", f"{main}/imagePullPolicy", "Never"),
        "replicas": Effect(7, f"{deployment}/spec/replicas", 7),
        "config": Effect({"ORCASTREAM_X": "1"}, f"ConfigMap/orcastream-{role}/data/ORCASTREAM_X", "1"),
        "env": Effect([{"name": "A", "value": "b"}], f"{main}/env/-1", {"name": "A", "value": "b"}),
        "resources": Effect(resources, f"{main}/resources", resources),
        "priorityClassName": Effect("high", f"{spec}/priorityClassName", "high"),
        "nodeSelector": Effect({"a": "b"}, f"{spec}/nodeSelector", {"a": "b"}),
        "tolerations": Effect(NODE, f"{spec}/tolerations", NODE),
        "affinity": Effect({"podAffinity": {}}, f"{spec}/affinity", {"podAffinity": {}}),
    }


POD = "Deployment/orcastream-worker/spec/template/spec"
GATEWAY_POD = "Deployment/orcastream-gateway/spec/template/spec"
SCALED = "ScaledObject/orcastream-worker/spec"
SCALER = "HorizontalPodAutoscaler/orcastream-gateway/spec"
SHARED = "ConfigMap/orcastream/data"
LOADING = "ConfigMap/orcastream-model/data"
VOLUME = "PersistentVolumeClaim/orcastream-models/spec"
EFFECTS = {
    **{f"gateway.{name}": effect for name, effect in process("gateway").items()},
    **{f"worker.{name}": effect for name, effect in process("worker").items()},
    "gateway.shutdownGraceSeconds": Effect(300, f"{GATEWAY_POD}/terminationGracePeriodSeconds", 325),
    "worker.drainGraceSeconds": Effect(100, f"{POD}/terminationGracePeriodSeconds", 170),
    "worker.stallTimeoutSeconds": Effect(10, f"{POD}/terminationGracePeriodSeconds", 40),
    "worker.rollingUpdate": Effect(
        {"maxSurge": 2, "maxUnavailable": 0},
        "Deployment/orcastream-worker/spec/strategy/rollingUpdate",
        {"maxSurge": 2, "maxUnavailable": 0},
    ),
    "worker.autoscaling.mode": Effect("hpa", "HorizontalPodAutoscaler/orcastream-worker/spec/minReplicas", 2),
    "worker.autoscaling.minReplicas": Effect(3, f"{SCALED}/minReplicaCount", 3, KEDA),
    "worker.autoscaling.maxReplicas": Effect(
        1, f"{SCALED}/fallback", {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}, KEDA
    ),
    "worker.autoscaling.requestsPerWorker": Effect(6, f"{SCALED}/advanced/scalingModifiers/target", "6", KEDA),
    "gateway.autoscaling.enabled": Effect(True, f"{SCALER}/minReplicas", 2),
    "gateway.autoscaling.minReplicas": Effect(4, f"{SCALER}/minReplicas", 4, GATEWAY_HPA),
    "gateway.autoscaling.maxReplicas": Effect(5, f"{SCALER}/maxReplicas", 5, GATEWAY_HPA),
    "gateway.autoscaling.cpu": Effect(
        "300m", f"{SCALER}/metrics/0/resource/target", {"type": "AverageValue", "averageValue": "300m"}, GATEWAY_HPA
    ),
    "config": Effect({"ORCASTREAM_LEASE_MS": "7000"}, f"{SHARED}/ORCASTREAM_LEASE_MS", "7000"),
    "imagePullSecrets": Effect([{"name": "s"}], f"{POD}/imagePullSecrets", [{"name": "s"}]),
    "redis.mode": Effect("bundled", "StatefulSet/orcastream-redis/spec/replicas", 1),
    "redis.secret": Effect("s", f"{POD}/containers/0/env/0/valueFrom/secretKeyRef/name", "s"),
    "redis.database": Effect(3, f"{SCALED}/triggers/0/metadata/databaseIndex", "3", KEDA),
    "redis.url": Effect("rediss://r:1", "Secret/orcastream-redis/stringData/worker-url", "rediss://r:1"),
    "redis.namespace": Effect("n", f"{SCALED}/triggers/0/metadata/stream", "n:{orca-demo}:requests:realtime", KEDA),
    "redis.tls": Effect(True, f"{POD}/volumes/1/secret/secretName", "orcastream-redis"),
    "redis.addresses": Effect(
        ["10.1.2.3/32"],
        "NetworkPolicy/redis-egress/spec/egress/0/to",
        [{"ipBlock": {"cidr": "10.1.2.3/32"}}],
        {"redis": {"mode": "managed"}},
    ),
    "redis.ports": Effect(
        [10000],
        "NetworkPolicy/redis-egress/spec/egress/0/ports",
        [{"port": 10000, "protocol": "TCP"}],
        {"redis": {"mode": "managed"}},
    ),
    "model.servedName": Effect("m", f"{SCALED}/triggers/3/metadata/stream", "orca:{m}:requests:low", KEDA),
    "model.path": Effect("/m", f"{SHARED}/ORCASTREAM_MODEL", "/m"),
    "apiKeys.enabled": Effect(True, f"{GATEWAY_POD}/volumes/1/secret/secretName", "orcastream-api-keys"),
    "apiKeys.secret": Effect("k", f"{GATEWAY_POD}/volumes/1/secret/secretName", "k", {"apiKeys": {"enabled": True}}),
    "modelCache.enabled": Effect(True, f"{SHARED}/ORCASTREAM_MODEL", "/models/orca-demo"),
    "modelCache.repository": Effect("a/b", f"{LOADING}/REPOSITORY", "a/b", CACHE),
    "modelCache.revision": Effect("0" * 40, f"{LOADING}/REVISION", "0" * 40, CACHE),
    "modelCache.storage": Effect("5Gi", f"{VOLUME}/resources/requests/storage", "5Gi", CACHE),
    "modelCache.storageClassName": Effect("nfs", f"{VOLUME}/storageClassName", "nfs", CACHE),
    "modelCache.hubSecret": Effect("h", f"{POD}/initContainers/0/env/0/valueFrom/secretKeyRef/name", "h", CACHE),
    "gpu.enabled": Effect(True, f"{POD}/containers/0/resources/limits/nvidia.com~1gpu", 1),
    "gpu.products": Effect(
        ["NVIDIA-L40S"],
        f"{POD}/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0",
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L40S"]}]},
    ),
    "networkPolicy.enabled": Effect(False, "NetworkPolicy/default-deny", None),
    "monitoring.enabled": Effect(True, "PodMonitor/orcastream-worker/apiVersion", "monitoring.coreos.com/v1"),
    "monitoring.namespace": Effect(
        "obs",
        "NetworkPolicy/scrape-ingress/spec/ingress/0/from/0/namespaceSelector/matchLabels",
        {"kubernetes.io/metadata.name": "obs"},
        MONITORING,
    ),
    "monitoring.otlpEndpoint": Effect(
        "http://c:4318", f"{SHARED}/OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318", MONITORING
    ),
    "monitoring.labels": Effect({"a": "b"}, "PrometheusRule/orcastream/metadata/labels", {"a": "b"}, MONITORING),
    "https.enabled": Effect(True, "HTTPRoute/orcastream/spec/hostnames/0", "llm.example.com"),
    "https.host": Effect("h.org", "Certificate/orcastream/spec/dnsNames", ["h.org"], HTTPS),
    "https.gatewayClass": Effect("g", "Gateway/orcastream/spec/gatewayClassName", "g", HTTPS),
    "https.issuer": Effect("i", "Certificate/orcastream/spec/issuerRef/name", "i", HTTPS),
}


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def at(documents: list[Document], path: str) -> Any:
    """Return the node at KIND/NAME/key/..., None if there is none; ~1 is a slash in a key."""
    kind, name, *keys = path.split("/")
    found: Any = next((one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name), None)
    for key in keys:
        if isinstance(found, list):
            found = found[int(key)] if int(key) < len(found) else None
        elif found is not None:
            found = found.get(key.replace("~1", "/"))
    return found


def test_every_value_is_tested_here() -> None:
    assert set(EFFECTS) == {value.path for value in values()}


@pytest.mark.parametrize("path", EFFECTS)
def test_a_value_has_its_described_effect(path: str) -> None:
    effect = EFFECTS[path]
    assert at(rendered(effect.others), effect.at) != effect.gives
    assert at(rendered(merged(effect.others, nested(path, effect.to))), effect.at) == effect.gives


def test_the_metrics_autoscaler_has_the_same_bounds_and_target() -> None:
    bounds = {"minReplicas": 3, "maxReplicas": 5, "requestsPerWorker": 9}
    spec = find(
        rendered(merged(HPA, {"worker": {"autoscaling": bounds}})), "HorizontalPodAutoscaler", "orcastream-worker"
    )["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (3, 5)
    assert spec["metrics"][0]["external"]["target"]["averageValue"] == "9"


def test_scaling_down_waits_for_the_chosen_drain() -> None:
    for mode in (KEDA, HPA):
        documents = rendered(merged(mode, {"worker": {"drainGraceSeconds": 200, "stallTimeoutSeconds": 30}}))
        text = yaml.safe_dump([one for one in documents if one["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")])
        assert "periodSeconds: 240" in text
        assert at(documents, f"{POD}/terminationGracePeriodSeconds") == 240
        settings = find(documents, "ConfigMap", "orcastream-worker")["data"]
        assert (settings["ORCASTREAM_DRAIN_GRACE_S"], settings["ORCASTREAM_STALL_TIMEOUT_S"]) == ("200", "30")
        assert find(documents, "Deployment", "orcastream-worker")["spec"]["progressDeadlineSeconds"] == 940


def test_no_autoscaler_gets_a_longer_period_than_kubernetes_accepts() -> None:
    longest = {"worker": {"drainGraceSeconds": 3600}, "gateway": {"shutdownGraceSeconds": 3600}}
    documents = rendered(merged(merged(HPA, GATEWAY_HPA), longest))
    for role, grace_s in (("worker", 3670), ("gateway", 3625)):
        pods = at(documents, f"Deployment/orcastream-{role}/spec/template/spec/terminationGracePeriodSeconds")
        scaler = f"HorizontalPodAutoscaler/orcastream-{role}/spec/behavior/scaleDown/policies/0/periodSeconds"
        assert (pods, at(documents, scaler)) == (grace_s, 1800)
    scaled = at(rendered(merged(KEDA, longest)), f"{SCALED}/advanced/horizontalPodAutoscalerConfig/behavior")
    assert scaled["scaleDown"]["policies"][0]["periodSeconds"] == 1800


def test_a_stopped_gateway_has_the_chosen_time() -> None:
    documents = rendered(merged(GATEWAY_HPA, {"gateway": {"shutdownGraceSeconds": 600}}))
    assert find(documents, "ConfigMap", "orcastream-gateway")["data"]["ORCASTREAM_SHUTDOWN_GRACE_S"] == "600"
    assert at(documents, f"{GATEWAY_POD}/terminationGracePeriodSeconds") == 625
    assert at(documents, f"{SCALER}/behavior/scaleDown/policies/0/periodSeconds") == 625


def test_a_changed_setting_rolls_the_pods_and_nothing_else_does() -> None:
    def stamp(values: dict[str, Any]) -> Any:
        return at(rendered(values), "Deployment/orcastream-worker/spec/template/metadata/annotations/checksum~1config")

    assert stamp({}) == stamp({"worker": {"replicas": 5}})
    assert stamp({}) != stamp({"worker": {"config": {"ORCASTREAM_MAX_BATCH_SIZE": "8"}}})
    assert stamp({"redis": {"url": "redis://a:6379"}}) != stamp({"redis": {"url": "redis://b:6379"}})
    assert stamp(CACHE) != stamp(merged(CACHE, {"modelCache": {"revision": "0" * 40}}))


def test_a_users_setting_overrides_that_of_the_manifests() -> None:
    documents = rendered({"worker": {"config": {"ORCASTREAM_KV_CACHE_MEMORY": "1073741824"}}})
    assert find(documents, "ConfigMap", "orcastream-worker")["data"]["ORCASTREAM_KV_CACHE_MEMORY"] == "1073741824"
    assert find(documents, "ConfigMap", "orcastream-gateway")["data"]["ORCASTREAM_PORT"] == "8000"


def test_every_container_has_the_image() -> None:
    documents = rendered(merged(CACHE, {"worker": {"image": {"repository": "w", "digest": DIGEST}}}))
    images = {at(documents, f"{POD}/{containers}/0/image") for containers in ("initContainers", "containers")}
    assert images == {f"w@{DIGEST}"}


def test_a_url_tells_keda_where_redis_is() -> None:
    def told(url: str) -> tuple[str, str, set[str]]:
        documents = rendered(merged(KEDA, {"redis": {"url": url}}))
        secret = find(documents, "Secret", "orcastream-redis")["stringData"]
        triggers = find(documents, "ScaledObject", "orcastream-worker")["spec"]["triggers"]
        return secret["address"], secret["tls"], {one["metadata"]["databaseIndex"] for one in triggers}

    assert told("rediss://r.org:6380/1") == ("r.org:6380", "enable", {"1"})
    assert told("redis://r.org") == ("r.org:6379", "disable", {"0"})
    assert told("redis://[fd00::1]/") == ("[fd00::1]:6379", "disable", {"0"})
    assert at(rendered({}), "Secret/orcastream-redis") is None


def test_the_name_of_the_secret_may_look_like_a_number() -> None:
    documents = rendered({"redis": {"url": "redis://r.org", "secret": "123"}})
    assert find(documents, "Secret", "123")["metadata"]["name"] == "123"


def test_the_bundled_redis_is_found_in_the_namespace_of_the_release() -> None:
    secret = find(rendered({"redis": {"mode": "bundled"}}), "Secret", "orcastream-redis")
    assert secret["stringData"]["address"] == "orcastream-redis.orcastream.svc:6379"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"worker": {"replica": 2}}, "replica"),
        ({"wroker": {}}, "wroker"),
        ({"worker": {"replicas": "two"}}, "replicas"),
        ({"worker": {"autoscaling": {"mode": "KEDA"}}}, "mode"),
        ({"worker": {"config": {"ORCASTREAM_MAX_BATCH_SIZE": 8}}}, "ORCASTREAM_MAX_BATCH_SIZE"),
        ({"worker": {"config": {"ORCASTREAM_DRAIN_GRACE_S": "9"}}}, "set worker.drainGraceSeconds instead"),
        ({"config": {"ORCASTREAM_SERVED_MODEL_NAME": "m"}}, "set model.servedName instead"),
        ({"model": {"servedName": ""}}, "servedName"),
        ({"worker": {"drainGraceSeconds": 3601}}, "drainGraceSeconds"),
        ({"modelCache": {"revision": "main"}}, "revision"),
        ({"redis": {"url": "redis://:password@r:6379"}}, "url"),
        ({"gpu": {"enabled": True}, "worker": {"resources": {"limits": {"cpu": "4"}}}}, "worker.resources: .* no GPU"),
        ({"redis": {"url": "redis://r:6379", "mode": "bundled"}}, "redis.url"),
        ({"redis": {"url": "rediss://r:6379", "tls": True}}, "no ca.crt"),
        ({"gateway": {"config": {"ORCASTREAM_SHUTDOWN_GRACE_S": "9"}}}, "set gateway.shutdownGraceSeconds instead"),
        ({"gateway": {"config": {"ORCASTREAM_PORT": "9000"}}}, "gateway.config.ORCASTREAM_PORT: leave it out"),
        ({"worker": {"config": {"ORCASTREAM_ADMIN_PORT": "9001"}}}, "worker.config.ORCASTREAM_ADMIN_PORT: leave"),
        (merged(KEDA, {"config": {"ORCASTREAM_QUEUE_LANES": "4"}}), "config.ORCASTREAM_QUEUE_LANES: KEDA"),
        ({"config": {"ORCASTREAM_REDIS_URL": "redis://r"}}, "config.ORCASTREAM_REDIS_URL: set redis.url instead"),
        ({"worker": {"config": {"ORCASTREAM_TORCH_THREADS": "4"}}}, "TORCH_THREADS: set worker.resources instead"),
        ({"redis": {"tls": True}, "config": {"ORCASTREAM_REDIS_CA_FILE": "/ca.crt"}}, "REDIS_CA_FILE: leave it out"),
        ({"apiKeys": {"enabled": True}, "config": {"ORCASTREAM_API_KEYS_FILE": "/k"}}, "API_KEYS_FILE: leave it out"),
        (merged(CACHE, {"model": {"path": "/models/x"}}), "model.path: modelCache loads"),
        ({"redis": {"url": "redis://r:6379?db=3"}}, "redis.url: name the database in the path"),
        ({"redis": {"url": "redis://r", "database": 3}}, "redis.database: it is for a Secret of your own"),
        ({"redis": {"mode": "bundled", "database": 3}}, "redis.database: it is for a Secret of your own"),
        (
            merged(GATEWAY_HPA, {"gateway": {"autoscaling": {"minReplicas": 4, "maxReplicas": 3}}}),
            "gateway.autoscaling.minReplicas: 4 is more than maxReplicas, 3",
        ),
        (
            merged(KEDA, {"worker": {"autoscaling": {"minReplicas": 9}}}),
            "worker.autoscaling.minReplicas: 9 is more than maxReplicas, 8",
        ),
        (
            merged(HPA, {"worker": {"autoscaling": {"maxReplicas": 1}}}),
            "worker.autoscaling.minReplicas: 2 is more than maxReplicas, 1",
        ),
        (
            merged(HPA, {"worker": {"autoscaling": {"minReplicas": 0}}}),
            "worker.autoscaling.minReplicas: hpa does not scale to zero",
        ),
    ],
)
def test_unknown_values_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=told):
        rendered(wrong)


def test_several_models_work_only_with_an_autoscaler_that_tells_them_apart() -> None:
    for where in ({"config": MORE_MODELS}, {"gateway": {"config": MORE_MODELS}}):
        assert rendered(where)
        assert rendered(merged(KEDA, where))
        with pytest.raises(Refused, match="ORCASTREAM_MORE_MODELS: hpa counts the requests of all models"):
            rendered(merged(HPA, where))


def test_lanes_work_only_with_components_that_see_all_lanes() -> None:
    lanes = {"config": {"ORCASTREAM_QUEUE_LANES": "4"}}
    assert at(rendered(merged(HPA, lanes)), f"{SHARED}/ORCASTREAM_QUEUE_LANES") == "4"
    assert rendered(merged(KEDA, {"config": {"ORCASTREAM_QUEUE_LANES": "1"}}))
