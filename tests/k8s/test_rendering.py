"""The tests' own reader of kustomizations agrees with kubectl's."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.kustomization import K8S, OPTIONS, OVERLAYS, Document, components, read, with_components
from tests.k8s.rendering import NoKubectl, documents_of, find_kubectl, render


@pytest.fixture(scope="module")
def kubectl() -> str:
    try:
        return find_kubectl()[0]
    except NoKubectl as missing:
        pytest.skip(f"kustomizations are not rendered: {missing}")


def plain(document: Document) -> Any:
    """Return objects without meaningless parts: the hash in a generated name, the order of lists, a Secret's base64."""
    text = re.sub(r'"(orcastream[a-z-]*)-[a-z0-9]{10}"', r'"\1"', json.dumps(document, sort_keys=True))
    document = json.loads(text)
    if document["kind"] == "Secret":
        document["data"] = {key: base64.b64decode(value).decode() for key, value in document["data"].items()}
        del document["type"]
    return ordered(document)


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ordered(item) for key, item in value.items() if item is not None}
    return sorted(json.dumps(ordered(item), sort_keys=True) for item in value) if isinstance(value, list) else value


def by_name(documents: list[Any]) -> dict[tuple[str, str], Any]:
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def test_every_component_is_in_an_overlay_or_an_option() -> None:
    used = {component for name in OVERLAYS for component in components(name)}
    assert used | OPTIONS == {folder.name for folder in (K8S / "components").iterdir()}
    assert not used & OPTIONS


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_tests_reader_matches_kubectl(kubectl: str, name: str) -> None:
    compare(kubectl, K8S / "overlays" / name)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_reader_matches_kubectl_with_options(kubectl: str, name: str, tmp_path: Path) -> None:
    compare(kubectl, with_components(tmp_path, "overlays/dev", [name]))


def compare(kubectl: str, folder: Path) -> None:
    rendered = by_name([plain(document) for document in documents_of(render(kubectl, folder))])
    as_read = json.loads(json.dumps(read(folder)))
    for document in as_read:
        if document["kind"] == "Secret":
            document["data"] = {k: base64.b64encode(v.encode()).decode() for k, v in document["data"].items()}
            document["type"] = "Opaque"
    ours = by_name([plain(document) for document in as_read])
    assert set(ours) == set(rendered)
    for key, document in ours.items():
        assert document == rendered[key], key
