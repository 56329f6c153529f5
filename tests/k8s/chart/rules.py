"""Where values of the chart enter the manifests: a pattern of paths, and what Helm inserts there."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from orcastream.schemas.keys import CLASSES, Keys
from orcastream.telemetry.dashboards import DASHBOARDS
from tests.k8s.chart.layout import Action, Block, Extended, Replaced
from tests.k8s.chart.variants import ABSENT, Choice


@dataclass(frozen=True)
class Rule:
    """`make` returns the node for each matching path KIND/NAME/key/...; `whole`: it also replaces the variants."""

    pattern: str
    make: Callable[[Any], Any]
    whole: bool = False


def apply(rules: Iterable[Rule], objects: dict[str, Any]) -> dict[str, Any]:
    """Return the trees of all objects, by KIND/NAME, with every rule. Raises LookupError for a rule without a match."""
    for rule in rules:
        used = False
        for path, tree in objects.items():
            objects[path], found = _put(rule, path, tree)
            used |= found
        if not used:
            raise LookupError(f"no path matches {rule.pattern}")
    return objects


def _put(rule: Rule, path: str, node: Any) -> tuple[Any, bool]:
    """Return the node with the rule applied, and whether it was used."""
    if node is ABSENT:
        return node, False
    if fnmatchcase(path, rule.pattern) and (rule.whole or not isinstance(node, Choice)):
        return rule.make(node), True
    if isinstance(node, Choice):
        cases = [(condition, _put(rule, path, value)) for condition, value in node.cases]
        otherwise, found = _put(rule, path, node.otherwise)
        found |= any(used for _, (_, used) in cases)
        return Choice([(condition, value) for condition, (value, _) in cases], otherwise), found
    if isinstance(node, Extended | Replaced):
        inner = "items" if isinstance(node, Extended) else "otherwise"
        value, found = _put(rule, path, getattr(node, inner))
        return replace(node, **{inner: value}), found
    if isinstance(node, dict):
        put = {key: _put(rule, f"{path}/{key}", value) for key, value in node.items()}
        return type(node)({key: value for key, (value, _) in put.items()}), any(used for _, used in put.values())
    if isinstance(node, list):
        items = [_put(rule, f"{path}/{number}", value) for number, value in enumerate(node)]
        return [value for value, _ in items], any(used for _, used in items)
    return node, False


def _value(path: str, text: str = "{{ .Values.%s }}") -> Callable[[Any], Any]:
    return lambda _: Action(text % path)


def _quoted(path: str) -> Callable[[Any], Any]:
    return _value(path, "{{ .Values.%s | quote }}")


def _text(text: str) -> Callable[[Any], Any]:
    return lambda _: Action(text)


def _replaced(path: str) -> Callable[[Any], Any]:
    return lambda node: Replaced(path, node)


def _listed(path: str) -> Callable[[Any], Any]:
    return lambda _: Block(f"{{{{- toYaml .Values.{path} | nindent INDENT }}}}", data=True)


def _file(name: str) -> Callable[[Any], Any]:
    return lambda _: Block(f'{{{{- .Files.Get "dashboards/{name}" | nindent INDENT }}}}')


def _peers(peers: Any) -> Any:
    """Return the peers: managed servers by their addresses; the bundled one keeps its selector."""
    if "ipBlock" not in peers[0]:
        return peers
    return Block("{{- range .Values.redis.addresses }}\n- ipBlock:\n    cidr: {{ . | quote }}\n{{- end }}", data=True)


_PORTS: Final = Block("{{- range .Values.redis.ports }}\n- port: {{ . }}\n  protocol: TCP\n{{- end }}", data=True)


def _with(key: str, node: Any) -> Callable[[Any], Any]:
    """Return a mapping with one more key."""
    return lambda mapping: {**mapping, key: node}


def _pod(role: str) -> tuple[Rule, ...]:
    pod = f"Deployment/orcastream-{role}/spec/template/spec"
    container = f"{pod}/containers/{role}"
    return (
        Rule(f"{pod}/*ontainers/*/image", _text(f'{{{{ include "orcastream.image" (list . .Values.{role}.image) }}}}')),
        Rule(f"{pod}/*ontainers/*/imagePullPolicy", _value(f"{role}.image.pullPolicy")),
        Rule(f"Deployment/orcastream-{role}/spec/replicas", _value(f"{role}.replicas")),
        Rule(f"{container}/resources", _replaced(f"{role}.resources"), whole=True),
        Rule(f"{container}/env", lambda items: Extended(items, f"{role}.env")),
        Rule(pod, lambda spec: _pod_spec(spec, role)),
        Rule(
            f"Deployment/orcastream-{role}/spec/template/metadata",
            lambda metadata: {**metadata, "annotations": metadata.get("annotations", {}) | _CHECKSUM},
        ),
    )


_SEEN_AT_START: Final = ("redis.url", "modelCache.repository", "modelCache.revision")
"""Values that pods read when they start, from objects that keep their names."""
_CHECKSUM: Final = {
    "checksum/config": Action(
        '{{ print (include (print .Template.BasePath "/config.yaml") .)'
        f"{''.join(f' .Values.{path}' for path in _SEEN_AT_START)} | sha256sum }}}}"
    )
}


def _pod_spec(spec: dict[str, Any], role: str) -> dict[str, Any]:
    for key in ("nodeSelector", "tolerations", "affinity"):
        spec[key] = Replaced(f"{role}.{key}", spec.get(key, ABSENT))
    spec["priorityClassName"] = Replaced(f"{role}.priorityClassName", scalar=True)
    spec["imagePullSecrets"] = Replaced("imagePullSecrets")
    return spec


def _streams() -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"ScaledObject/*/triggers/{name}/metadata/stream",
            _text(_STREAM.replace("REST", Keys("model").requests(name).partition("}:")[2])),
        )
        for name in CLASSES
    )


def _scaling() -> tuple[Rule, ...]:
    worker, gateway = "HorizontalPodAutoscaler/orcastream-worker", "HorizontalPodAutoscaler/orcastream-gateway"
    least, most, target = (f"worker.autoscaling.{name}" for name in ("minReplicas", "maxReplicas", "requestsPerWorker"))
    return (
        Rule("ScaledObject/*/streamLength", _quoted(target)),
        Rule("ScaledObject/*/scalingModifiers/target", _quoted(target)),
        Rule("ScaledObject/*/scaleDown/policies/0/periodSeconds", _text(_PACE)),
        Rule("ScaledObject/*/minReplicaCount", _value(least, "{{ .Values.%s | default 0 }}")),
        Rule("ScaledObject/*/maxReplicaCount", _value(most)),
        Rule("ScaledObject/*/fallback/replicas", _value(most, "{{ min 2 .Values.%s }}")),
        Rule(f"{worker}/*/averageValue", _quoted(target)),
        Rule(f"{worker}/*/scaleDown/policies/0/periodSeconds", _text(_PACE)),
        Rule(f"{worker}/spec/minReplicas", _value(least, "{{ .Values.%s | default 2 }}")),
        Rule(f"{worker}/spec/maxReplicas", _value(most)),
        Rule(f"{gateway}/spec/minReplicas", _value("gateway.autoscaling.minReplicas")),
        Rule(f"{gateway}/spec/maxReplicas", _value("gateway.autoscaling.maxReplicas")),
        Rule(f"{gateway}/*/averageValue", _quoted("gateway.autoscaling.cpu")),
        Rule(f"{gateway}/*/scaleDown/policies/0/periodSeconds", _text(_GATEWAY_PACE)),
        Rule("ScaledObject/*/databaseIndex", _text(_DATABASE)),
    )


_GRACE: Final = '{{ include "orcastream.workerGraceSeconds" . }}'
_GATEWAY_GRACE: Final = '{{ include "orcastream.gatewayGraceSeconds" . }}'
_PACE: Final = '{{ min 1800 (include "orcastream.workerGraceSeconds" .) }}'
"""Autoscalers accept no longer period."""
_GATEWAY_PACE: Final = '{{ min 1800 (include "orcastream.gatewayGraceSeconds" .) }}'
_DATABASE: Final = (
    '{{ (urlParse .Values.redis.url).path | trimPrefix "/" | default (toString .Values.redis.database) | quote }}'
)
_STREAM: Final = '{{ printf "%s:{%s}:REST" .Values.redis.namespace .Values.model.servedName | quote }}'
_DIRECTORY: Final = '{{ printf "/models/%s" .Values.model.servedName | quote }}'
_COMMON: Final = (
    Rule("*/metadata/namespace", _text("{{ .Release.Namespace }}")),
    Rule("*/metadata/labels/app.kubernetes.io/managed-by", _text("{{ .Release.Service }}")),
)
_GATEWAY: Final = (
    Rule("Deployment/orcastream-gateway/spec/template/spec/terminationGracePeriodSeconds", _text(_GATEWAY_GRACE)),
    Rule("ConfigMap/orcastream-gateway/data/ORCASTREAM_SHUTDOWN_GRACE_S", _quoted("gateway.shutdownGraceSeconds")),
)
_WORKER: Final = (
    Rule("Deployment/orcastream-worker/spec/strategy/rollingUpdate", _replaced("worker.rollingUpdate")),
    Rule("Deployment/orcastream-worker/spec/template/spec/terminationGracePeriodSeconds", _text(_GRACE)),
    Rule(
        "Deployment/orcastream-worker/spec/progressDeadlineSeconds",
        _text('{{ max 900 (add 700 (include "orcastream.workerGraceSeconds" .)) }}'),
    ),
    Rule("ConfigMap/orcastream-worker/data/ORCASTREAM_DRAIN_GRACE_S", _quoted("worker.drainGraceSeconds")),
    Rule("ConfigMap/orcastream-worker/data/ORCASTREAM_STALL_TIMEOUT_S", _quoted("worker.stallTimeoutSeconds")),
)
_REDIS: Final = (
    Rule("*/ORCASTREAM_REDIS_URL/valueFrom/secretKeyRef/name", _quoted("redis.secret")),
    Rule("*/volumes/redis-ca/secret/secretName", _quoted("redis.secret")),
    Rule("TriggerAuthentication/*/secretTargetRef/*/name", _quoted("redis.secret")),
    Rule("Secret/orcastream-redis/metadata/name", _quoted("redis.secret")),
    Rule(
        "Secret/orcastream-redis/stringData/address",
        _text('{{ printf "orcastream-redis.%s.svc:6379" .Release.Namespace }}'),
    ),
    Rule("ConfigMap/orcastream/data/ORCASTREAM_NAMESPACE", _quoted("redis.namespace")),
    Rule("NetworkPolicy/redis-egress*/spec/egress/0/to", _peers),
    Rule("NetworkPolicy/redis-egress in managed-redis/spec/egress/0/ports", lambda _: _PORTS),
    Rule("*/volumes/api-keys/secret/secretName", _quoted("apiKeys.secret")),
)
_MODEL: Final = (
    Rule("ConfigMap/orcastream/data/ORCASTREAM_SERVED_MODEL_NAME", _quoted("model.servedName"), whole=True),
    Rule(
        "ConfigMap/orcastream/data/ORCASTREAM_MODEL",
        lambda _: Choice(
            [
                (".Values.modelCache.enabled", Action(_DIRECTORY)),
                (".Values.model.path", Action("{{ .Values.model.path | quote }}")),
            ],
            ABSENT,
        ),
        whole=True,
    ),
    Rule("ConfigMap/orcastream-model/data/REPOSITORY", _quoted("modelCache.repository")),
    Rule("ConfigMap/orcastream-model/data/REVISION", _quoted("modelCache.revision")),
    Rule("ConfigMap/orcastream-model/data/DIRECTORY", _text(_DIRECTORY)),
    Rule("PersistentVolumeClaim/*/storage", _quoted("modelCache.storage")),
    Rule(
        "PersistentVolumeClaim/*/spec", _with("storageClassName", Replaced("modelCache.storageClassName", scalar=True))
    ),
    Rule("*/HF_TOKEN/valueFrom/secretKeyRef/name", _quoted("modelCache.hubSecret")),
    Rule("Deployment/orcastream-worker/*/matchExpressions/0/values", _listed("gpu.products")),
)
_MONITORING: Final = (
    Rule("ConfigMap/orcastream/data/OTEL_EXPORTER_OTLP_ENDPOINT", _quoted("monitoring.otlpEndpoint")),
    *(
        Rule(f"NetworkPolicy/{name}/*/kubernetes.io/metadata.name", _quoted("monitoring.namespace"))
        for name in ("scrape-ingress", "otlp-egress")
    ),
    *(
        Rule(f"{kind}/*/metadata", _with("labels", Replaced("monitoring.labels")))
        for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
    ),
    *(Rule(f"ConfigMap/*/data/{dashboard.file_name}", _file(dashboard.file_name)) for dashboard in DASHBOARDS),
)
_HTTPS: Final = (
    Rule("Gateway/*/gatewayClassName", _quoted("https.gatewayClass")),
    Rule("Gateway/*/hostname", _quoted("https.host")),
    Rule("HTTPRoute/*/hostnames/0", _quoted("https.host")),
    Rule("Certificate/*/dnsNames/0", _quoted("https.host")),
    Rule("Certificate/*/issuerRef/name", _quoted("https.issuer")),
)
RULES: Final = (
    *_COMMON,
    *_GATEWAY,
    *_WORKER,
    *_streams(),
    *_scaling(),
    *_REDIS,
    *_MODEL,
    *_MONITORING,
    *_HTTPS,
    *_pod("gateway"),
    *_pod("worker"),
)
"""In this order: a rule sees what those before it have put."""
