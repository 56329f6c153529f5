"""Helm renders the chart as Kustomize renders the manifests, object by object."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.chart.chart import CHART, SWITCHES
from tests.k8s.kustomization import K8S, OVERLAYS, Document, overlay, read, with_components

helm_python = pytest.importorskip("helm_python", reason="`make k8s-test` installs Helm")
from tests.k8s.chart.helm import NAMESPACE, example, merged, rendered  # noqa: E402

TURNED_ON: dict[str, Any] = {
    "redis": {"redis": {"mode": "bundled"}},
    "managed-redis": {"redis": {"mode": "managed"}},
    "redis-tls": {"redis": {"tls": True}},
    "api-keys": {"apiKeys": {"enabled": True}},
    "gpu": {"gpu": {"enabled": True}},
    "gpu-type": {"gpu": {"products": ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"]}},
    "model-cache": {"modelCache": {"enabled": True}, "model": {"servedName": "Qwen3-0.6B"}},
    "autoscaling": {"worker": {"autoscaling": {"mode": "keda"}}},
    "autoscaling-hpa": {"worker": {"autoscaling": {"mode": "hpa"}}},
    "autoscaling-gateway": {"gateway": {"autoscaling": {"enabled": True}}},
    "monitoring": {"monitoring": {"enabled": True}},
    "scaled-workers": {"worker": {"autoscaling": {"mode": "hpa"}}, "monitoring": {"enabled": True}},
    "rest-at-zero": {"worker": {"autoscaling": {"mode": "keda"}}, "monitoring": {"enabled": True}},
    "tls": {"https": {"enabled": True}},
}
"""What turns a component on, by its name."""


def by_name(documents: list[Document]) -> dict[str, Any]:
    """Return objects without what is specific to Helm or Kustomize: the namespace, the manager, the rollout trigger."""
    objects = {}
    for document in json.loads(json.dumps(documents)):
        metadata = document["metadata"]
        if metadata.get("labels", {}).pop("app.kubernetes.io/managed-by", None) and not metadata["labels"]:
            del metadata["labels"]
        template = document.get("spec", {}).get("template", {}).get("metadata", {})
        if template.get("annotations", {}).pop("checksum/config", None):
            del template["annotations"]
        if document["kind"] == "Secret":
            document["data"] = document.get("data") or document.pop("stringData")
            document.pop("type", None)
        objects[f"{document['kind']}/{metadata['name']}"] = document
    objects.pop(f"Namespace/{NAMESPACE}", None)
    return objects


def compare(chart: list[Document], kustomized: list[Document]) -> None:
    ours, theirs = by_name(chart), by_name(kustomized)
    assert set(ours) == set(theirs)
    for name, document in theirs.items():
        assert ours[name] == document, name


def test_without_values_the_chart_equals_the_base() -> None:
    compare(rendered({}), read(K8S / "base"))


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.component)
def test_a_switch_equals_its_component(switch: Any, tmp_path: Path) -> None:
    compare(rendered(TURNED_ON[switch.component]), read(with_components(tmp_path, "base", together(switch.component))))


def together(*names: str) -> list[str]:
    """Return the components that the chart includes if these are enabled: some follow from two others."""
    on = [switch.component for switch in SWITCHES if switch.component in names and not switch.needs]
    if "scaled-workers" in names:
        on += ["autoscaling-hpa", "monitoring"]
    if "rest-at-zero" in names:
        on += ["autoscaling", "monitoring"]
    if "monitoring" in on and {"autoscaling", "autoscaling-hpa"} & set(on):
        on.append("scaled-workers")
    if "monitoring" in on and "autoscaling" in on:
        on.append("rest-at-zero")
    return on


APART = [{"redis", "managed-redis"}, {"autoscaling", "autoscaling-hpa"}, {"model-cache", "autoscaling"}]
"""Pairs that exclude each other; and one where Kustomize leaves the names of the streams to the overlay (see prod)."""
SINGLE = [switch.component for switch in SWITCHES if not switch.needs]
PAIRS = [pair for pair in combinations(SINGLE, 2) if set(pair) not in APART]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_switches_equal_their_two_components(pair: tuple[str, str], tmp_path: Path) -> None:
    both = merged(TURNED_ON[pair[0]], TURNED_ON[pair[1]])
    compare(rendered(both), read(with_components(tmp_path, "base", together(*pair))))


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_example_equals_its_overlay(name: str) -> None:
    compare(without_waivers(rendered(example(name))), without_waivers(overlay(name)))


def without_waivers(documents: list[Document]) -> list[Document]:
    """Remove waivers: overlays waive checkov's findings about their own choices."""
    for document in documents:
        annotations = document["metadata"].get("annotations", {})
        for key in [key for key in annotations if key.startswith("checkov.io/")]:
            del annotations[key]
    return documents


def test_lint_finds_nothing() -> None:
    report = helm_python.lint(CHART, strict=True)
    assert not report["errors"]
    assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


def test_every_switch_is_enabled_here() -> None:
    assert set(TURNED_ON) == {switch.component for switch in SWITCHES}
