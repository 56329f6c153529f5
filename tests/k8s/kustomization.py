"""Reads a kustomization as `kubectl kustomize` does, to the extent that k8s/ needs.

So tests can render an overlay without kubectl; test_rendering.py compares the two if kubectl is present.
"""

import json
import os
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

K8S = Path(__file__).parents[2] / "k8s"
OVERLAYS = ("dev", "prod", "cpu")
OPTIONS = {"gpu-type", "priority"}
"""Components that no overlay has: what they name differs from cluster to cluster."""
KNOWN = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "components",
    "patches",
    "labels",
    "images",
    "configMapGenerator",
    "secretGenerator",
}

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
"""Lists that a patch adds to instead of replacing them, in kinds that Kubernetes itself knows."""
_OF_THE_CLUSTER = ("Namespace", "PriorityClass")
_CUSTOM = (".sh/", ".coreos.com/", "cert-manager.io/", "gateway.networking")


def overlay(name: str) -> list[Document]:
    """Return everything that an overlay deploys."""
    return read(K8S / "overlays" / name)


def read(folder: Path) -> list[Document]:
    """Return everything that the kustomization in `folder` renders. Raises AssertionError for an ignored field."""
    documents: list[Document] = []
    _add(documents, folder)
    return documents


def components(name: str) -> list[str]:
    """Return the components of an overlay."""
    (kustomization,) = load(K8S / "overlays" / name / "kustomization.yaml")
    return [path.rpartition("/")[2] for path in kustomization.get("components", ())]


def with_components(folder: Path, under: str, names: Iterable[str]) -> Path:
    """Write a kustomization of k8s/`under` with these components to `folder`."""
    kustomization = {
        "namespace": "orcastream",
        "resources": [_relative(K8S / under, folder)],
        "components": [_relative(K8S / "components" / name, folder) for name in names],
        "images": [{"name": f"orcastream-{role}", "newTag": "0.1.0"} for role in ("gateway", "worker")],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization), encoding="utf-8")
    return folder


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    """Return all objects of that kind."""
    return [document for document in documents if document["kind"] == kind]


def find(documents: list[Document], kind: str, name: str) -> Document:
    """Return the only object of that kind and name."""
    (found,) = (one for one in of_kind(documents, kind) if one["metadata"]["name"] == name)
    return found


def load(path: Path) -> Iterator[Document]:
    """Return the objects in a YAML file."""
    yield from (document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document)


def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(path.resolve(), start.resolve())


def _add(documents: list[Document], folder: Path) -> None:
    (kustomization,) = load(folder / "kustomization.yaml")
    assert set(kustomization) <= KNOWN, set(kustomization) - KNOWN
    for name in kustomization.get("resources", ()):
        path = folder / name
        if path.is_dir():
            _add(documents, path)
        else:
            documents.extend(load(path))
    for field, kind in (("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")):
        for generator in kustomization.get(field, ()):
            _generate(documents, kind, generator, folder)
    for name in kustomization.get("components", ()):
        _add(documents, folder / name)
    for patch in kustomization.get("patches", ()):
        for document in load(folder / patch["path"]):
            if isinstance(document, list):
                _operate(find(documents, **patch["target"]), document)
            else:
                _patch(find(documents, document["kind"], document["metadata"]["name"]), document)
    _transform(documents, kustomization)


def _generate(documents: list[Document], kind: str, generator: Document, folder: Path) -> None:
    data = dict(literal.split("=", 1) for literal in generator.get("literals", ()))
    data |= {name: (folder / name).read_text(encoding="utf-8") for name in generator.get("files", ())}
    if generator.get("behavior") == "merge":
        find(documents, kind, generator["name"])["data"].update(data)
        return
    options = generator.get("options", {})
    metadata = {key: dict(options[key]) for key in ("labels", "annotations") if key in options}
    documents.append(
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": generator["name"], **metadata}, "data": data}
    )


def _patch(target: Document, patch: Document) -> None:
    merged = _merge(target, patch, lists=not any(part in target["apiVersion"] for part in _CUSTOM))
    target.clear()
    target.update(merged)


def _operate(target: Document, operations: list[Document]) -> None:
    """Apply a JSON patch (RFC 6902), to the extent that k8s/ needs."""
    for operation in operations:
        *parents, last = (int(part) if part.isdigit() else part for part in operation["path"].split("/")[1:])
        holder: Any = target
        for part in parents:
            holder = holder[part]
        match operation["op"]:
            case "test":
                assert holder[last] == operation["value"], operation
            case "remove":
                del holder[last]
            case "replace":
                assert last in holder, operation
                holder[last] = operation["value"]
            case other:
                raise AssertionError(f"this reader knows no operation {other}")


def _merge(old: Any, new: Any, key: str = "", *, lists: bool = True) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        merged = {name: _merge(old.get(name), value, name, lists=lists) for name, value in new.items()}
        return {name: value for name, value in (old | merged).items() if value is not None}
    if lists and isinstance(old, list) and key in _MERGE_KEYS:
        by = _MERGE_KEYS[key]
        items = {item[by]: item for item in old}
        for item in new:
            items[item[by]] = _merge(items.get(item[by]), item, lists=lists)
        return list(items.values())
    return deepcopy(new)


def _transform(documents: list[Document], kustomization: Document) -> None:
    for document in documents:
        if "namespace" in kustomization and document["kind"] not in _OF_THE_CLUSTER:
            document["metadata"]["namespace"] = kustomization["namespace"]
        for labels in kustomization.get("labels", ()):
            document["metadata"]["labels"] = document["metadata"].get("labels", {}) | labels["pairs"]
        spec = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            _set_image(container, kustomization.get("images", ()))


def _set_image(container: Document, images: list[Document]) -> None:
    name, _, tag = container["image"].partition(":")
    for image in images:
        if name == image["name"]:
            name, tag = image.get("newName", name), image.get("newTag", tag)
    container["image"] = f"{name}:{tag}" if tag else name
