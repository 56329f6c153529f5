"""The Helm chart, generated from the Kustomize base and its components: every component is a switch in values.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.k8s.chart.layout import template
from tests.k8s.chart.rules import RULES, apply
from tests.k8s.chart.settings import MERGED, settings
from tests.k8s.chart.values import schema, values_yaml
from tests.k8s.chart.variants import amend, variants
from tests.k8s.kustomization import K8S, Document, read, with_components

CHART: Final = K8S / "chart"
_HEAD: Final = "{{- /* Made from k8s/base and k8s/components by `python -m tests.k8s.chart`. */}}\n"
_KEDA: Final = 'eq .Values.worker.autoscaling.mode "keda"'


@dataclass(frozen=True)
class Switch:
    """A component, the condition under which the chart includes it, and the components that it needs."""

    component: str
    condition: str
    needs: tuple[str, ...] = ()


SWITCHES: Final = (
    Switch("redis", 'eq .Values.redis.mode "bundled"'),
    Switch("managed-redis", 'eq .Values.redis.mode "managed"'),
    Switch("redis-tls", ".Values.redis.tls"),
    Switch("api-keys", ".Values.apiKeys.enabled"),
    Switch("gpu", ".Values.gpu.enabled"),
    Switch("gpu-type", ".Values.gpu.products"),
    Switch("model-cache", ".Values.modelCache.enabled"),
    Switch("autoscaling", _KEDA),
    Switch("autoscaling-hpa", 'eq .Values.worker.autoscaling.mode "hpa"'),
    Switch("autoscaling-gateway", ".Values.gateway.autoscaling.enabled"),
    Switch("monitoring", ".Values.monitoring.enabled"),
    Switch("scaled-workers", 'ne .Values.worker.autoscaling.mode "none"', needs=("monitoring",)),
    Switch(
        "rest-at-zero",
        f"and ({_KEDA}) (not .Values.worker.autoscaling.minReplicas)",
        needs=("autoscaling", "monitoring"),
    ),
    Switch("tls", ".Values.https.enabled"),
)
LEFT_OUT: Final = {"priority"}
"""Priority classes belong to the cluster, a release to a namespace: values name classes that are there."""


def files() -> dict[str, str]:
    """Return every generated file, by its path in the chart."""
    made = {"values.yaml": values_yaml(), "values.schema.json": schema()}
    objects, switches = _objects()
    for path, tree in apply(RULES, objects).items():
        name = f"templates/{_file(path, switches[path])}.yaml"
        made[name] = made.get(name, _HEAD) + _guarded(path, tree, switches[path])
    return made


def _objects() -> tuple[dict[str, Any], dict[str, Switch | None]]:
    """Return the trees of all objects by KIND/NAME (a component's: KIND/NAME in COMPONENT), and the switch of each."""
    objects = {key: variants(one) for key, one in _rendered(()).items()}
    switches: dict[str, Switch | None] = dict.fromkeys(objects)
    for switch in SWITCHES:
        before, after = _rendered(switch.needs), _rendered((*switch.needs, switch.component))
        for key, one in after.items():
            if key not in before:
                own = key if key not in objects else f"{key} in {switch.component}"
                objects[own], switches[own] = variants(one), switch
            else:
                objects[key] = amend(objects[key], variants(before[key]), variants(one), switch.condition)
    return objects, switches


@cache
def _rendered(components: tuple[str, ...]) -> dict[str, Document]:
    """Return the base rendered with these components, by KIND/NAME, without the namespace itself."""
    with TemporaryDirectory() as folder:
        documents = read(with_components(Path(folder), "base", components))
    for one in documents:
        if one["kind"] == "Secret":
            one["stringData"] = one.pop("data")
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in documents if one["kind"] != "Namespace"}


def _file(path: str, switch: Switch | None) -> str:
    kind, _, name = path.partition("/")
    if switch is not None:
        return switch.component
    return {"ConfigMap": "config", "NetworkPolicy": "network"}.get(kind) or name.removeprefix("orcastream-")


def _guarded(path: str, tree: Any, switch: Switch | None) -> str:
    """Return one object's template, under the conditions of its component and its kind."""
    conditions = [switch.condition] if switch else []
    conditions += [".Values.networkPolicy.enabled"] * path.startswith("NetworkPolicy/")
    name = path.partition("/")[2]
    text = settings(name, tree) if path.startswith("ConfigMap/") and name in MERGED else template(tree)
    text = f"---\n{text}"
    if conditions:
        joined = f"and {' '.join(f'({one})' for one in conditions)}" if len(conditions) > 1 else conditions[0]
        return f"{{{{- if {joined} }}}}\n{text}{{{{- end }}}}\n"
    return text


def stale() -> Iterator[str]:
    """Return files of the chart that differ from the generated ones, or are no longer generated."""
    made = files()
    for path, text in made.items():
        file = CHART / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            yield path
    kept = {file.name for file in (CHART / "templates").iterdir()} - {Path(path).name for path in made}
    yield from sorted(kept - WRITTEN)


WRITTEN: Final = {"_helpers.tpl", "NOTES.txt", "checks.yaml", "secret.yaml"}
"""Templates that are written by hand: what Kustomize has no object for."""
