"""Validates custom resources against crds/, the project's strict summaries of their definitions."""

import json
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

from tests.k8s.kustomization import Document

CRDS = Path(__file__).parent / "crds"
BUILT_IN = ("v1", "apps/v1", "policy/v1", "networking.k8s.io/v1", "scheduling.k8s.io/v1", "autoscaling/v2")
"""What Kubernetes itself knows; everything else in k8s/ is custom."""


@cache
def validators() -> dict[tuple[str, str], Draft202012Validator]:
    """Return validators by apiVersion and kind."""
    found = {}
    for path in CRDS.glob("*.json"):
        schema = json.loads(path.read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(schema)
        fields = schema["properties"]
        found[fields["apiVersion"]["const"], fields["kind"]["const"]] = Draft202012Validator(schema)
    return found


def custom(documents: list[Document]) -> list[Document]:
    """Return the objects of kinds that Kubernetes does not define itself."""
    return [document for document in documents if document["apiVersion"] not in BUILT_IN]


def faults(document: Document) -> list[str]:
    """Return the faults of a custom resource: field and reason."""
    key = document["apiVersion"], document["kind"]
    if key not in validators():
        return [f"{key}: no schema in {CRDS.name}/"]
    errors = validators()[key].iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]
