"""The chart's values: default, what each is for, and what it may be. values.yaml and values.schema.json follow."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tests.k8s.kustomization import K8S, Document, find, load, read

_NAME: Final = {"minLength": 1}
_COUNT: Final = {"minimum": 1}
_PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65535}
_URL: Final = {"pattern": "^$|^rediss?://[^@]*$"}
_SETTINGS: Final = {"additionalProperties": {"type": "string"}}
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One value: its path with dots, its default, a line about it, and what else a JSON Schema says of it."""

    path: str
    default: Any
    about: str
    schema: dict[str, Any] = field(default_factory=dict)


def values() -> list[Value]:
    """All values, in the order of values.yaml. Defaults that the manifests have are read from them."""
    base = read(K8S / "base")
    gateway = [*_process("gateway", base), *_gateway()]
    worker = [*_process("worker", base), *_worker()]
    return [*gateway, *worker, *_surroundings(base), *_options()]


def values_yaml() -> str:
    """values.yaml, with a comment above each value."""
    return "\n".join(["# Made by `python -m tests.k8s.chart` from tests/k8s/chart/values.py.", *_lines()]) + "\n"


def schema() -> str:
    """values.schema.json: a value that there is not is refused, and so is one of another type."""
    root = _object()
    for value in values():
        *parents, last = value.path.split(".")
        holder = root
        for parent in parents:
            holder = holder["properties"].setdefault(parent, _object())
        of_type = {} if value.default is None else {"type": _TYPES[type(value.default)]}
        holder["properties"][last] = {"description": value.about, **of_type, **value.schema}
    root["properties"]["global"] = {"type": "object"}  # Helm hands it to every chart
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **root}, indent=2) + "\n"


def _object() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _lines() -> Iterator[str]:
    before: list[str] = []
    for value in values():
        parts = value.path.split(".")
        shared = next((n for n, (a, b) in enumerate(zip(before, parts, strict=False)) if a != b), 0)
        for depth in range(shared, len(parts) - 1):
            yield f"{'  ' * depth}{parts[depth]}:"
        indent = "  " * (len(parts) - 1)
        yield f"{indent}# {value.about}"
        yield from (indent + line for line in yaml.safe_dump({parts[-1]: value.default}, width=120).splitlines())
        before = parts


def _process(role: str, base: list[Document]) -> list[Value]:
    deployment = find(base, "Deployment", f"orcastream-{role}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return [
        Value(f"{role}.image.repository", container["image"].partition(":")[0], "Where the image is"),
        Value(f"{role}.image.tag", "", "Its tag; empty: the chart's appVersion"),
        Value(f"{role}.image.digest", "", "Its digest (sha256:...), in place of the tag"),
        Value(
            f"{role}.image.pullPolicy",
            container["imagePullPolicy"],
            "When it is pulled",
            {"enum": ["Always", "IfNotPresent", "Never"]},
        ),
        Value(f"{role}.replicas", deployment["spec"]["replicas"], "How many, without an autoscaler", {"minimum": 0}),
        Value(
            f"{role}.config",
            {},
            f"Settings of the {role} by their variables, as strings: ORCASTREAM_...",
            _SETTINGS,
        ),
        Value(f"{role}.env", [], "Further variables of the container, as Kubernetes writes them"),
        Value(f"{role}.resources", {}, "Requests and limits in place of the manifests'"),
        Value(f"{role}.priorityClassName", "", "A PriorityClass that the cluster has"),
        Value(f"{role}.nodeSelector", {}, "Labels that a node must have"),
        Value(f"{role}.tolerations", [], "Taints that are tolerated, in place of the manifests'"),
        Value(f"{role}.affinity", {}, "Affinity in place of the manifests'"),
    ]


def _gateway() -> list[Value]:
    return [
        Value(
            "gateway.shutdownGraceSeconds",
            20,
            "How long open streams of a stopped gateway may go on; the pod's grace period is 25 s longer",
            {"minimum": 0},
        ),
        Value("gateway.autoscaling.enabled", False, "Gateways by their CPU; needs metrics-server"),
        Value("gateway.autoscaling.minReplicas", 2, "At least so many", _COUNT),
        Value("gateway.autoscaling.maxReplicas", 10, "At most so many", _COUNT),
        Value("gateway.autoscaling.cpu", "600m", "CPU per gateway that is aimed at; one fills a core at most"),
    ]


def _worker() -> list[Value]:
    return [
        Value("worker.drainGraceSeconds", 20, "How long a stopped worker finishes what it runs", {"minimum": 0}),
        Value(
            "worker.stallTimeoutSeconds",
            60,
            "A worker whose engine stands still for this long ends; the pod's grace period is the sum of both and 10",
            _COUNT,
        ),
        Value("worker.rollingUpdate", {}, "How a rollout replaces workers, in place of the manifests'"),
        Value(
            "worker.autoscaling.mode",
            "none",
            "none; keda (from zero, by the length of the request streams); hpa (by prometheus-adapter, from two on)",
            {"enum": ["none", "keda", "hpa"]},
        ),
        Value(
            "worker.autoscaling.minReplicas",
            None,
            "At least so many; unset: 0 with keda, 2 with hpa",
            {"type": ["integer", "null"], "minimum": 0},
        ),
        Value("worker.autoscaling.maxReplicas", 8, "At most so many", _COUNT),
        Value("worker.autoscaling.requestsPerWorker", 24, "Waiting and running requests per worker", _COUNT),
    ]


def _surroundings(base: list[Document]) -> list[Value]:
    settings = find(base, "ConfigMap", "orcastream")["data"]
    (egress,) = load(K8S / "components/managed-redis/network.yaml")
    (way,) = egress["spec"]["egress"]
    blocks = [one["ipBlock"]["cidr"] for one in way["to"]]
    ports = [one["port"] for one in way["ports"]]
    return [
        Value("config", {}, "Settings of gateways and workers alike, by their variables, as strings", _SETTINGS),
        Value("imagePullSecrets", [], "Secrets for the registry, as Kubernetes writes them: [{name: ...}]"),
        Value(
            "redis.mode",
            "none",
            "none: you open the way to Redis; managed: to the addresses below; bundled: a small one, for trying out",
            {"enum": ["none", "managed", "bundled"]},
        ),
        Value("redis.secret", "orcastream-redis", "The Secret with gateway-url, worker-url and what KEDA needs", _NAME),
        Value("redis.url", "", "A URL without a password: the chart then makes that Secret", _URL),
        Value("redis.namespace", settings["ORCASTREAM_NAMESPACE"], "What every key in Redis begins with", _NAME),
        Value("redis.tls", False, "The authority that signed Redis's certificate is in the Secret, as ca.crt"),
        Value("redis.addresses", blocks, "With managed: where Redis is, as CIDRs", {"items": {"type": "string"}}),
        Value("redis.ports", ports, "With managed: its ports, those of sentinels among them", {"items": _PORT}),
        Value("model.servedName", settings["ORCASTREAM_SERVED_MODEL_NAME"], "The name that clients ask for", _NAME),
        Value("model.path", "", "Its directory in the image or on a volume of yours; empty: the demo model"),
        Value("apiKeys.enabled", False, "Ask for API keys; without, everybody is the same tenant"),
        Value("apiKeys.secret", "orcastream-api-keys", "The Secret with keys.json, of `orcastream keys new`", _NAME),
    ]


def _options() -> list[Value]:
    (model,) = (one for one in _generators("model-cache") if one["name"] == "orcastream-model")
    literals = dict(literal.split("=", 1) for literal in model["literals"])
    endpoint = "http://otel-collector.monitoring.svc:4318"
    return [
        Value("modelCache.enabled", False, "The model on a volume that all pods share, loaded by an init container"),
        Value("modelCache.repository", literals["REPOSITORY"], "The repository on Hugging Face's hub", _NAME),
        Value("modelCache.revision", literals["REVISION"], "The commit", {"pattern": "^[0-9a-f]{40}$"}),
        Value("modelCache.storage", "100Gi", "Size of the volume", _NAME),
        Value("modelCache.storageClassName", "", "A storage class with ReadWriteMany; empty: the cluster's default"),
        Value("modelCache.hubSecret", "orcastream-hub", "The Secret with token, for gated models", _NAME),
        Value("gpu.enabled", False, "One NVIDIA GPU per worker"),
        Value(
            "gpu.products",
            [],
            "Only on nodes with these types, by the label nvidia.com/gpu.product",
            {"items": {"type": "string"}},
        ),
        Value("networkPolicy.enabled", True, "Deny everything in the namespace but what is named"),
        Value("monitoring.enabled", False, "Scraping, alert rules, dashboards, traces; needs prometheus-operator"),
        Value("monitoring.namespace", "monitoring", "Where Prometheus and the collector run", _NAME),
        Value("monitoring.otlpEndpoint", endpoint, "The collector", _NAME),
        Value("monitoring.labels", {}, "Labels by which Prometheus chooses monitors and rules"),
        Value("https.enabled", False, "HTTPS by the Gateway API, with a certificate of cert-manager's"),
        Value("https.host", "llm.example.com", "The name that clients call", _NAME),
        Value("https.gatewayClass", "eg", "The GatewayClass; eg is Envoy Gateway's", _NAME),
        Value("https.issuer", "letsencrypt", "The ClusterIssuer", _NAME),
    ]


def _generators(component: str) -> list[Document]:
    (kustomization,) = load(K8S / "components" / component / "kustomization.yaml")
    generators: list[Document] = kustomization["configMapGenerator"]
    return generators
