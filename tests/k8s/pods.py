"""Facts about a pod template: its container, the settings in its environment, the duration of a probe."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic_settings import BaseSettings

from tests.k8s.kustomization import Document, find

S = TypeVar("S", bound=BaseSettings)

GATEWAY = "orcastream-gateway"
WORKER = "orcastream-worker"


def pod(documents: list[Document], deployment: str) -> Any:
    """Return the pod specification of a Deployment."""
    return find(documents, "Deployment", deployment)["spec"]["template"]["spec"]


def container(documents: list[Document], deployment: str) -> Any:
    """Return the only container of a Deployment that is not an init container."""
    (found,) = pod(documents, deployment)["containers"]
    return found


def environment(documents: list[Document], deployment: str) -> dict[str, str]:
    """Return the variables of a Deployment's container; those from a Secret or a field have a sample value."""
    variables: dict[str, str] = {}
    main = container(documents, deployment)
    for source in main["envFrom"]:
        variables |= find(documents, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in main["env"]:
        variables[variable["name"]] = variable.get("value") or _stand_in(main, variable["valueFrom"])
    return variables


def settings(documents: list[Document], deployment: str, kind: type[S]) -> S:
    """Return the settings of a Deployment's process. Raises AssertionError if a variable belongs to no setting."""
    variables = environment(documents, deployment)
    unknown = {name for name in variables if name.startswith("ORCASTREAM_")} - _names(kind)
    assert not unknown, f"{deployment}: {sorted(unknown)} are variables of no setting"
    with _only({name: __file__ if name.endswith("_FILE") else value for name, value in variables.items()}):
        return kind(_env_file=None)  # a pod's files are not here


def probe_s(probe: Document) -> int:
    """Return the seconds that a probe may fail before it counts."""
    return int(probe["failureThreshold"] * probe["periodSeconds"])


def bytes_of(quantity: str) -> int:
    """Return a Kubernetes quantity of memory in bytes: 2Gi, 384Mi."""
    return int(quantity[:-2]) * {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[quantity[-2:]]


def _names(kind: type[BaseSettings]) -> set[str]:
    return {f"ORCASTREAM_{name.upper()}" for name in kind.model_fields}


def _stand_in(main: Document, source: Document) -> str:
    if "resourceFieldRef" in source:
        assert source["resourceFieldRef"]["resource"] == "limits.cpu"
        return str(main["resources"]["limits"]["cpu"])
    if "secretKeyRef" in source:
        tls = any(variable["name"] == "ORCASTREAM_REDIS_CA_FILE" for variable in main["env"])
        url = f"redis{'s' * tls}://redis:6379/0"
        return {"gateway-url": url, "worker-url": url}[source["secretKeyRef"]["key"]]
    return "a-field"


@contextmanager
def _only(variables: dict[str, str]) -> Iterator[None]:
    """Set only these variables."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
