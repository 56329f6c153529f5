"""The chart's values: default, purpose, and range. values.yaml and values.schema.json are generated from them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tests.k8s.kustomization import K8S, Document, find, load, read

_NAME: Final = {"minLength": 1}
_COUNT: Final = {"minimum": 1}
_LONGEST: Final = {"maximum": 3600}
"""The longest time that the processes' settings accept, in seconds."""
_PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65535}
_URL: Final = {"pattern": "^$|^rediss?://[^@]*$"}
_SETTINGS: Final = {"additionalProperties": {"type": "string"}}
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One value: its dotted path, its default, a line about it, and further JSON Schema constraints."""

    path: str
    default: Any
    about: str
    schema: dict[str, Any] = field(default_factory=dict)


def values() -> list[Value]:
    """Return all values, in the order of values.yaml. Defaults in the manifests are read from them."""
    base = read(K8S / "base")
    gateway = [*_process("gateway", base), *_gateway()]
    worker = [*_process("worker", base), *_worker()]
    return [*gateway, *worker, *_surroundings(base), *_options()]


def values_yaml() -> str:
    """Return values.yaml, with a comment above each value."""
    return "\n".join(["# Made by `python -m tests.k8s.chart` from tests/k8s/chart/values.py.", *_lines()]) + "\n"


def schema() -> str:
    """Return values.schema.json, which refuses unknown values and values of the wrong type."""
    root = _object()
    for value in values():
        *parents, last = value.path.split(".")
        holder = root
        for parent in parents:
            holder = holder["properties"].setdefault(parent, _object())
        of_type = {} if value.default is None else {"type": _TYPES[type(value.default)]}
        holder["properties"][last] = {"description": value.about, **of_type, **value.schema}
    root["properties"]["global"] = {"type": "object"}  # Helm passes it to every chart
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
        Value(f"{role}.image.repository", container["image"].partition(":")[0], "Repository of the image"),
        Value(f"{role}.image.tag", "", "Tag of the image; empty: the chart's appVersion"),
        Value(f"{role}.image.digest", "", "Digest of the image (sha256:...), instead of the tag"),
        Value(
            f"{role}.image.pullPolicy",
            container["imagePullPolicy"],
            "When the image is pulled",
            {"enum": ["Always", "IfNotPresent", "Never"]},
        ),
        Value(
            f"{role}.replicas",
            deployment["spec"]["replicas"],
            "Number of replicas without an autoscaler",
            {"minimum": 0},
        ),
        Value(
            f"{role}.config",
            {},
            f"Settings of the {role}, by variable (ORCASTREAM_...), as strings",
            _SETTINGS,
        ),
        Value(f"{role}.env", [], "Additional environment variables of the container, in Kubernetes' format"),
        Value(f"{role}.resources", {}, "Requests and limits, instead of the defaults"),
        Value(f"{role}.priorityClassName", "", "An existing PriorityClass"),
        Value(f"{role}.nodeSelector", {}, "Labels that a node must have"),
        Value(f"{role}.tolerations", [], "Tolerations, instead of the defaults"),
        Value(f"{role}.affinity", {}, "Affinity, instead of the default"),
    ]


def _gateway() -> list[Value]:
    return [
        Value(
            "gateway.shutdownGraceSeconds",
            20,
            "How long open streams of a stopping gateway may continue; the pod's grace period is 25 s longer",
            {"minimum": 0, **_LONGEST},
        ),
        Value("gateway.autoscaling.enabled", False, "Scale gateways by CPU; needs metrics-server"),
        Value("gateway.autoscaling.minReplicas", 2, "Minimum number of gateways", _COUNT),
        Value("gateway.autoscaling.maxReplicas", 10, "Maximum number of gateways", _COUNT),
        Value("gateway.autoscaling.cpu", "600m", "Target CPU per gateway; a gateway uses at most one core"),
    ]


def _worker() -> list[Value]:
    return [
        Value(
            "worker.drainGraceSeconds",
            20,
            "How long a stopping worker may finish its running requests",
            {"minimum": 0, **_LONGEST},
        ),
        Value(
            "worker.stallTimeoutSeconds",
            60,
            "A worker whose engine stalls for this long ends; the pod's grace period is the sum of both plus 10 s",
            {**_COUNT, **_LONGEST},
        ),
        Value("worker.rollingUpdate", {}, "How a rollout replaces workers, instead of the default"),
        Value(
            "worker.autoscaling.mode",
            "none",
            "none; keda (from zero, by the length of the request streams); hpa (from two, through prometheus-adapter)",
            {"enum": ["none", "keda", "hpa"]},
        ),
        Value(
            "worker.autoscaling.minReplicas",
            None,
            "Minimum number of workers; unset: 0 with keda, 2 with hpa",
            {"type": ["integer", "null"], "minimum": 0},
        ),
        Value("worker.autoscaling.maxReplicas", 8, "Maximum number of workers", _COUNT),
        Value(
            "worker.autoscaling.requestsPerWorker",
            24,
            "Target number of waiting and running requests per worker",
            _COUNT,
        ),
    ]


def _surroundings(base: list[Document]) -> list[Value]:
    settings = find(base, "ConfigMap", "orcastream")["data"]
    (egress,) = load(K8S / "components/managed-redis/network.yaml")
    (way,) = egress["spec"]["egress"]
    blocks = [one["ipBlock"]["cidr"] for one in way["to"]]
    ports = [one["port"] for one in way["ports"]]
    return [
        Value("config", {}, "Settings of both gateways and workers, by variable, as strings", _SETTINGS),
        Value("imagePullSecrets", [], "Secrets for the registry, in Kubernetes' format: [{name: ...}]"),
        Value(
            "redis.mode",
            "none",
            "none: you allow access to Redis; managed: allow the addresses below; bundled: a small Redis for trials",
            {"enum": ["none", "managed", "bundled"]},
        ),
        Value("redis.secret", "orcastream-redis", "The Secret with gateway-url, worker-url and KEDA's keys", _NAME),
        Value("redis.database", 0, "The database that the Secret's URLs name, for KEDA", {"minimum": 0}),
        Value("redis.url", "", "A URL without a password: the chart then creates that Secret", _URL),
        Value("redis.namespace", settings["ORCASTREAM_NAMESPACE"], "Prefix of every key in Redis", _NAME),
        Value("redis.tls", False, "The Secret contains the authority that signed Redis's certificate, as ca.crt"),
        Value("redis.addresses", blocks, "With managed: addresses of Redis, as CIDRs", {"items": {"type": "string"}}),
        Value("redis.ports", ports, "With managed: ports of Redis, including sentinels", {"items": _PORT}),
        Value("model.servedName", settings["ORCASTREAM_SERVED_MODEL_NAME"], "The model name that clients use", _NAME),
        Value("model.path", "", "The model's directory in the image; empty: the demo model"),
        Value("apiKeys.enabled", False, "Require API keys; without them, all callers are the same tenant"),
        Value("apiKeys.secret", "orcastream-api-keys", "The Secret with keys.json from `orcastream keys new`", _NAME),
    ]


def _options() -> list[Value]:
    (model,) = (one for one in _generators("model-cache") if one["name"] == "orcastream-model")
    literals = dict(literal.split("=", 1) for literal in model["literals"])
    endpoint = "http://otel-collector.monitoring.svc:4318"
    return [
        Value(
            "modelCache.enabled", False, "Keep the model on a volume that all pods share, loaded by an init container"
        ),
        Value("modelCache.repository", literals["REPOSITORY"], "The repository on the Hugging Face Hub", _NAME),
        Value(
            "modelCache.revision", literals["REVISION"], "The commit of the repository", {"pattern": "^[0-9a-f]{40}$"}
        ),
        Value("modelCache.storage", "100Gi", "Size of the volume", _NAME),
        Value("modelCache.storageClassName", "", "A storage class with ReadWriteMany; empty: the cluster's default"),
        Value("modelCache.hubSecret", "orcastream-hub", "The Secret with the key token, for gated models", _NAME),
        Value("gpu.enabled", False, "One NVIDIA GPU per worker"),
        Value(
            "gpu.products",
            [],
            "Only nodes with these GPU types, by the label nvidia.com/gpu.product",
            {"items": {"type": "string"}},
        ),
        Value("networkPolicy.enabled", True, "Deny all traffic in the namespace except what the policies allow"),
        Value("monitoring.enabled", False, "Scraping, alert rules, dashboards, traces; needs prometheus-operator"),
        Value("monitoring.namespace", "monitoring", "Namespace of Prometheus and the collector", _NAME),
        Value("monitoring.otlpEndpoint", endpoint, "OTLP endpoint of the collector", _NAME),
        Value("monitoring.labels", {}, "Labels by which Prometheus selects monitors and rules"),
        Value("https.enabled", False, "HTTPS through the Gateway API, with a certificate from cert-manager"),
        Value("https.host", "llm.example.com", "The host name that clients use", _NAME),
        Value("https.gatewayClass", "eg", "The GatewayClass; eg is Envoy Gateway's", _NAME),
        Value("https.issuer", "letsencrypt", "The ClusterIssuer", _NAME),
    ]


def _generators(component: str) -> list[Document]:
    (kustomization,) = load(K8S / "components" / component / "kustomization.yaml")
    generators: list[Document] = kustomization["configMapGenerator"]
    return generators
