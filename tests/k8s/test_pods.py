"""Every pod of every overlay meets the restricted standard, and none depends on its surroundings."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.kustomization import OVERLAYS, Document, find, of_kind, overlay, read, with_components
from tests.k8s.pods import GATEWAY, WORKER, container, environment, pod


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


def test_pods_meet_the_restricted_standard(documents: list[Document]) -> None:
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
        assert set(secret["data"]) <= {"gateway-url", "worker-url", "address", "tls"}
        assert not any("@" in value for value in secret["data"].values())
    for name, key in ((GATEWAY, "gateway-url"), (WORKER, "worker-url")):
        url = next(one for one in container(documents, name)["env"] if one["name"] == "ORCASTREAM_REDIS_URL")
        assert url["valueFrom"]["secretKeyRef"] == {"name": "orcastream-redis", "key": key}


def test_prod_requires_keys_that_are_stored_as_hashes_and_can_change() -> None:
    documents = overlay("prod")
    file = environment(documents, GATEWAY)["ORCASTREAM_API_KEYS_FILE"]
    (mount,) = (one for one in container(documents, GATEWAY)["volumeMounts"] if file.startswith(one["mountPath"] + "/"))
    assert "subPath" not in mount  # a single mounted file would not change with the Secret
    (volume,) = (one for one in pod(documents, GATEWAY)["volumes"] if one["name"] == mount["name"])
    assert not volume["secret"].get("optional")
    (item,) = volume["secret"]["items"]
    assert file == f"{mount['mountPath']}/{item['path']}"
    assert volume["secret"]["defaultMode"] == 0o440  # readable by fsGroup


def test_disruptions_are_bounded(documents: list[Document]) -> None:
    for name in (GATEWAY, WORKER):
        budget = find(documents, "PodDisruptionBudget", name)["spec"]
        deployment = find(documents, "Deployment", name)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == deployment["selector"]


def test_every_written_path_is_on_a_writable_volume(documents: list[Document]) -> None:
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
    # Missing files of a branch cannot be detected while the hub is unreachable: an empty directory would be served.
    assert re.fullmatch(r"[0-9a-f]{40}", model["REVISION"])


def test_a_gpu_type_is_requested_by_the_label_that_feature_discovery_sets(tmp_path: Path) -> None:
    documents = read(with_components(tmp_path, "overlays/dev", ["gpu", "gpu-type"]))
    affinity = pod(documents, WORKER)["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("nvidia.com/gpu.product", "In")
    assert expression["values"]
    assert "affinity" not in pod(documents, GATEWAY)


def test_gateways_precede_workers_and_both_precede_pods_without_a_class(tmp_path: Path) -> None:
    documents = read(with_components(tmp_path, "overlays/dev", ["priority"]))
    values = [
        find(documents, "PriorityClass", pod(documents, name)["priorityClassName"])["value"]
        for name in (GATEWAY, WORKER)
    ]
    assert values[0] > values[1] > 0
    assert max(values) <= 1_000_000_000  # higher values are reserved for Kubernetes
