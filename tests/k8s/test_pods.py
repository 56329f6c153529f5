"""Every pod of every overlay keeps the restricted standard, and none can be surprised by its surroundings."""

import re
from typing import Any

import pytest

from gateway.settings import GatewaySettings
from tests.k8s.kustomization import K8S, OVERLAYS, Document, find, of_kind, overlay
from tests.k8s.pods import GATEWAY, WORKER, container, environment, pod, settings


@pytest.fixture(params=OVERLAYS)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return overlay(request.param)


def workloads(documents: list[Document]) -> list[Document]:
    return [*of_kind(documents, "Deployment"), *of_kind(documents, "StatefulSet")]


def containers(workload: Document) -> list[Any]:
    spec = workload["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def test_the_namespace_enforces_the_restricted_standard(documents: list[Document]) -> None:
    (namespace,) = of_kind(documents, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_pods_keep_it(documents: list[Document]) -> None:
    for workload in workloads(documents):
        security = workload["spec"]["template"]["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 10_000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in containers(workload):
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            gpu = "nvidia.com/gpu" in one["resources"]["limits"]
            assert one["securityContext"]["readOnlyRootFilesystem"] is not gpu
            assert set(one["resources"]["limits"]) >= {"cpu", "memory"}


def test_no_pod_gets_a_token_or_the_addresses_of_services(documents: list[Document]) -> None:
    for workload in workloads(documents):
        spec = workload["spec"]["template"]["spec"]
        assert spec["enableServiceLinks"] is False  # a Service called orcastream would set ORCASTREAM_PORT
        assert spec["automountServiceAccountToken"] is False
        account = find(documents, "ServiceAccount", spec["serviceAccountName"])
        assert account["automountServiceAccountToken"] is False


def test_no_secret_is_in_the_manifests(documents: list[Document]) -> None:
    for secret in of_kind(documents, "Secret"):
        assert set(secret["data"]) <= {"url", "address", "tls"}
        assert "@" not in secret["data"]["url"]
    for name in (GATEWAY, WORKER):
        url = next(one for one in container(documents, name)["env"] if one["name"] == "ORCASTREAM_REDIS_URL")
        assert url["valueFrom"]["secretKeyRef"] == {"name": "orcastream-redis", "key": "url"}


def test_disruptions_are_bounded(documents: list[Document]) -> None:
    for name in (GATEWAY, WORKER):
        budget = find(documents, "PodDisruptionBudget", name)["spec"]
        deployment = find(documents, "Deployment", name)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == deployment["selector"]


def test_a_writable_place_is_under_every_path_that_is_written(documents: list[Document]) -> None:
    for name in (GATEWAY, WORKER):
        main = container(documents, name)
        mounts = {one["mountPath"]: one for one in main["volumeMounts"]}
        assert "readOnly" not in mounts["/tmp"]
        for variable in ("HF_HOME", "TRITON_CACHE_DIR"):
            assert environment(documents, name).get(variable, "/tmp").startswith("/tmp")


def test_gpu_workers_share_memory_and_one_gpu() -> None:
    documents = overlay("prod")
    main = container(documents, WORKER)
    assert main["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"name": "shm", "mountPath": "/dev/shm"} in main["volumeMounts"]
    (shm,) = (one for one in pod(documents, WORKER)["volumes"] if one["name"] == "shm")
    assert shm["emptyDir"]["medium"] == "Memory"


def test_a_model_is_loaded_before_it_is_served_and_then_only_read() -> None:
    documents = overlay("prod")
    model = find(documents, "ConfigMap", "orcastream-model")["data"]
    for name in (GATEWAY, WORKER):
        (loading,) = pod(documents, name)["initContainers"]
        main = container(documents, name)
        assert loading["image"] == main["image"]
        assert environment(documents, name)["ORCASTREAM_MODEL"] == model["DIRECTORY"]
        (mount,) = (one for one in main["volumeMounts"] if one["name"] == "models")
        assert mount["readOnly"] is True
        assert model["DIRECTORY"].startswith(f"{mount['mountPath']}/")
    # What is missing of a branch cannot be told while the hub is away: an empty directory would be served.
    assert re.fullmatch(r"[0-9a-f]{40}", model["REVISION"])


KEYS_FROM = {"dev": set(), "cpu": {"ORCASTREAM_API_KEYS_IN_REDIS"}, "prod": {"ORCASTREAM_API_KEYS_FILE"}}


@pytest.mark.parametrize("name", OVERLAYS)
def test_api_keys_come_from_where_the_overlay_says(name: str) -> None:
    documents = overlay(name)
    variables = environment(documents, GATEWAY)
    assert {variable for variable in variables if variable.startswith("ORCASTREAM_API_KEYS")} == KEYS_FROM[name]
    found = settings(documents, GATEWAY, GatewaySettings)
    assert found.api_keys_in_redis is (name == "cpu")
    assert (found.api_keys_file is not None) is (name == "prod")
    assert not found.api_keys


def test_the_file_of_api_keys_is_one_of_a_directory_that_follows_its_secret() -> None:
    documents = overlay("prod")
    path = environment(documents, GATEWAY)["ORCASTREAM_API_KEYS_FILE"]
    (mount,) = (one for one in container(documents, GATEWAY)["volumeMounts"] if one["name"] == "api-keys")
    (volume,) = (one for one in pod(documents, GATEWAY)["volumes"] if one["name"] == "api-keys")
    (item,) = volume["secret"]["items"]
    assert path == f"{mount['mountPath']}/{item['path']}"
    assert mount["readOnly"] is True
    assert "subPath" not in mount  # would stay what it was at the start
    assert f"--from-file={item['key']}" in (K8S / "README.md").read_text(encoding="utf-8")
    assert volume["secret"].get("optional", False) is False
