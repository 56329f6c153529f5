"""Grace periods, probes and settings are related as k8s/README.md says."""

import json
import re
from dataclasses import dataclass

import pytest

from orcastream.gateway import main as gateway_main
from orcastream.gateway.settings import GatewaySettings
from orcastream.worker.settings import WorkerSettings
from tests.k8s.kustomization import K8S, OVERLAYS, Document, find, of_kind, overlay
from tests.k8s.pods import GATEWAY, WORKER, bytes_of, container, pod, probe_s, settings

MARGIN_S = 10
"""Between the longest that a process may take to end and the moment it is killed."""
PROCESS_BYTES = 2**30
"""A worker beside its KV cache: torch, the demo model, a batch (0.4 GiB measured), and as much again to be safe."""


@dataclass(frozen=True)
class Site:
    """One overlay: its objects, and the settings of its processes."""

    name: str
    documents: list[Document]
    gateway: GatewaySettings
    worker: WorkerSettings


@pytest.fixture(params=OVERLAYS)
def site(request: pytest.FixtureRequest) -> Site:
    documents = overlay(request.param)
    return Site(
        request.param,
        documents,
        settings(documents, GATEWAY, GatewaySettings),
        settings(documents, WORKER, WorkerSettings),
    )


def gateway_end_s(site: Site) -> float:
    """Return the time of preStop, then shutdown grace and uvicorn's margin."""
    sleep_s = container(site.documents, GATEWAY)["lifecycle"]["preStop"]["sleep"]["seconds"]
    return float(sleep_s + site.gateway.shutdown_grace_s + gateway_main._MARGIN_S)


def worker_end_s(site: Site) -> float:
    """Return the time of the drain, then the longest iteration in flight."""
    return site.worker.drain_grace_s + site.worker.stall_timeout_s


def test_a_pod_is_killed_after_its_process_has_ended(site: Site) -> None:
    assert pod(site.documents, GATEWAY)["terminationGracePeriodSeconds"] == gateway_end_s(site) + MARGIN_S
    assert pod(site.documents, WORKER)["terminationGracePeriodSeconds"] == worker_end_s(site) + MARGIN_S


def test_a_worker_that_hangs_ends_itself_before_it_is_restarted(site: Site) -> None:
    probe = container(site.documents, WORKER)["livenessProbe"]
    lease_s = site.worker.lease_ms / 1000
    noticed_s = site.worker.stall_timeout_s + lease_s / 4  # the keeper checks four times per lease
    assert lease_s < site.worker.stall_timeout_s
    assert site.worker.stall_timeout_s + probe_s(probe) > noticed_s
    assert probe["terminationGracePeriodSeconds"] <= MARGIN_S
    assert probe["httpGet"]["path"] == "/health/live"


def test_a_gateway_waits_for_redis_longer_than_a_request(site: Site) -> None:
    assert probe_s(container(site.documents, GATEWAY)["readinessProbe"]) > site.gateway.redis_patience_s


def test_a_rollout_is_not_aborted_while_a_pod_drains_or_loads(site: Site) -> None:
    for name in (GATEWAY, WORKER):
        deployment = find(site.documents, "Deployment", name)["spec"]
        main = container(site.documents, name)
        needed_s = probe_s(main["startupProbe"]) + probe_s(main["readinessProbe"]) + deployment["minReadySeconds"]
        if name == WORKER:  # the old one must leave first, or it holds the GPU that the new one waits for
            needed_s += pod(site.documents, name)["terminationGracePeriodSeconds"]
        elif site.gateway.require_worker:  # it is not ready before a worker is
            needed_s += probe_s(container(site.documents, WORKER)["startupProbe"])
        assert deployment["progressDeadlineSeconds"] > needed_s


def test_every_probe_answers_within_its_period(site: Site) -> None:
    for name in (GATEWAY, WORKER):
        main = container(site.documents, name)
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert main[kind]["timeoutSeconds"] <= main[kind]["periodSeconds"]


def test_a_worker_counts_as_started_once_its_model_is_loaded(site: Site) -> None:
    probe = container(site.documents, WORKER)["startupProbe"]
    assert probe["httpGet"]["path"] == "/health/ready"  # /health/live answers while it loads
    assert probe_s(probe) == 600


def test_probes_use_the_port_of_the_process(site: Site) -> None:
    for name, port in ((GATEWAY, site.gateway.port), (WORKER, site.worker.admin_port)):
        main = container(site.documents, name)
        (declared,) = main["ports"]
        assert declared["containerPort"] == port
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert main[kind]["httpGet"]["port"] == declared["name"]
    assert (site.gateway.host, site.worker.admin_host) == ("0.0.0.0", "0.0.0.0")


def test_scaling_down_waits_for_the_drain(site: Site) -> None:
    behaviours = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"]["behavior"]
        for one in of_kind(site.documents, "HorizontalPodAutoscaler")
    }
    for one in of_kind(site.documents, "ScaledObject"):
        assert one["spec"]["scaleTargetRef"]["name"] not in behaviours
        behaviours[one["spec"]["scaleTargetRef"]["name"]] = one["spec"]["advanced"]["horizontalPodAutoscalerConfig"][
            "behavior"
        ]
    assert set(behaviours) == (set() if site.name == "dev" else {GATEWAY, WORKER})
    for name, behaviour in behaviours.items():
        (policy,) = behaviour["scaleDown"]["policies"]
        assert policy["value"] == 1
        assert policy["periodSeconds"] == pod(site.documents, name)["terminationGracePeriodSeconds"]


def test_memory_holds_the_cache_and_the_process(site: Site) -> None:
    limit = bytes_of(container(site.documents, WORKER)["resources"]["limits"]["memory"])
    assert limit >= (site.worker.kv_cache_memory or 0) + PROCESS_BYTES
    # On CPUs the default is a share of the memory that is free when the worker starts, so it differs on each start.
    assert (site.worker.kv_cache_memory is None) == (site.worker.device == "cuda")


def test_a_tenants_files_leave_room_in_the_small_redis() -> None:
    documents = overlay("dev")
    gateway = settings(documents, GATEWAY, GatewaySettings)
    (server,) = find(documents, "StatefulSet", "orcastream-redis")["spec"]["template"]["spec"]["containers"]
    limit = re.search(r"--maxmemory (\d+)mb", " ".join(server["args"]))
    assert limit
    stored = gateway.max_files_bytes + gateway.max_batches * gateway.max_file_bytes
    assert stored <= int(limit[1]) * 2**20 // 2
    part, files, all_files = gateway.max_batches, gateway.max_file_bytes // 2**20, gateway.max_files_bytes // 2**20
    assert f"{all_files} + {part} · {files} = {stored // 2**20} MiB" in (K8S / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_the_sums(site: Site) -> None:
    page = re.sub(r" +", " ", (K8S / "README.md").read_text(encoding="utf-8"))
    sleep_s = container(site.documents, GATEWAY)["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s = pod(site.documents, GATEWAY)["terminationGracePeriodSeconds"]
    parts = (sleep_s, site.gateway.shutdown_grace_s, gateway_main._MARGIN_S, MARGIN_S)
    assert f"{' + '.join(f'{part:g}' for part in parts)} = {grace_s:g} s" in page
    grace_s = pod(site.documents, WORKER)["terminationGracePeriodSeconds"]
    parts = (site.worker.drain_grace_s, site.worker.stall_timeout_s, MARGIN_S)
    assert f"{' + '.join(f'{part:g}' for part in parts)} = {grace_s:g} s" in page
    assert f"{probe_s(container(site.documents, WORKER)['startupProbe'])} s" in page


def test_the_chart_accepts_the_times_that_the_settings_accept() -> None:
    schema = json.loads((K8S / "chart/values.schema.json").read_text(encoding="utf-8"))["properties"]
    for role, value, kind, setting in (
        ("gateway", "shutdownGraceSeconds", GatewaySettings, "shutdown_grace_s"),
        ("worker", "drainGraceSeconds", WorkerSettings, "drain_grace_s"),
        ("worker", "stallTimeoutSeconds", WorkerSettings, "stall_timeout_s"),
    ):
        bounds = kind.model_json_schema()["properties"][setting]
        chosen = schema[role]["properties"][value]
        assert (chosen["minimum"], chosen["maximum"]) == (bounds["minimum"], bounds["maximum"])
