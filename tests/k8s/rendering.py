"""`kubectl kustomize`, if there is a kubectl that supports components."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.k8s.kustomization import Document

OLDEST = (1, 22)
"""The first kubectl whose kustomize has components and `labels`; Debian 12's is older."""


class NoKubectl(Exception):
    """kubectl is missing or too old; the message says which."""


def find_kubectl() -> tuple[str, str]:
    """Return path and version of the kubectl on PATH. Raises NoKubectl."""
    path = shutil.which("kubectl")
    if path is None:
        raise NoKubectl("no kubectl on PATH")
    answer = subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, text=True, check=True)
    version = json.loads(answer.stdout)["clientVersion"]["gitVersion"]
    found = re.match(r"v(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise NoKubectl(f"{path} is {version}; components need v{OLDEST[0]}.{OLDEST[1]} or later")
    return path, version


def render(kubectl: str, folder: Path) -> str:
    """Render the kustomization in `folder` as YAML. Raises RuntimeError with kubectl's message if it fails."""
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{folder}: {done.stderr.strip()}")
    return done.stdout


def documents_of(rendered: str) -> list[Document]:
    """Return the objects of a rendered kustomization."""
    return [document for document in yaml.safe_load_all(rendered) if document]
