"""docker-compose.yml matches docs/compose.md and the settings of the processes."""

import re
import subprocess

import pytest
import yaml
from pydantic_settings import BaseSettings

from orcastream.cli.variables import variable
from orcastream.gateway.main import _MARGIN_S as GATEWAY_WRITES_S
from orcastream.gateway.settings import GatewaySettings
from orcastream.telemetry.dashboards import COMPOSE as DASHBOARDS
from orcastream.telemetry.dashboards.pace import EXPORTED
from orcastream.telemetry.names import Attribute
from orcastream.worker.settings import WorkerSettings
from tests.compose.files import COMPOSE, DOCKERFILE, ROOT, SERVICES, needed_by, variables
from tests.telemetry.prometheus_binaries import NONE_FOUND, PROMETHEIS

EXIT_S = 5
"""Time that a process which has done its work may take to exit."""
HAND_OVER_S = 5
"""Time that a worker may take to hand over, once its last iteration is done."""
SETTINGS: dict[str, type[BaseSettings]] = {
    "gateway": GatewaySettings,
    "worker": WorkerSettings,
    "worker-cuda": WorkerSettings,
}
SET_BY_IMAGE = {"ORCASTREAM_ADMIN_HOST", "ORCASTREAM_ADMIN_PORT"}
HARDENED = sorted(set(SERVICES) - {"grafana"})
LONG_LIVED = sorted(set(SERVICES) - {"load"})


def test_up_starts_the_whole_service_and_profiles_the_rest() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"worker-cuda": ["gpu"], "load": ["load"]}
    assert set(SERVICES) - set(profiles) == {"redis", "gateway", "worker", "collector", "grafana"}
    assert variables(SERVICES["worker"]["deploy"]["replicas"]) == {"WORKERS": "2"}


def test_the_page_stops_the_services_of_profiles_too() -> None:
    page = (ROOT / "docs" / "compose.md").read_text(encoding="utf-8")
    [(flags, what)] = re.findall(r"^\| `docker compose (.*)down` \| (stops .*?);", page, re.MULTILINE)
    assert (flags, what) == ("--profile '*' ", "stops everything")


def test_gateway_and_worker_need_only_redis() -> None:
    assert needed_by("gateway", "worker") == {"gateway", "worker", "redis"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_a_variable_with_a_version_or_a_build(name: str) -> None:
    service = SERVICES[name]
    [(image, default)] = variables(service["image"]).items()
    assert image.endswith("_IMAGE")
    assert default
    if "build" in service:
        target = service["build"]["target"]
        assert re.search(rf"^FROM \S+ AS {re.escape(target)}$", DOCKERFILE, re.MULTILINE)
    else:
        assert re.search(r":\d+\.\d+\.\d+", default)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_reaches_its_process(name: str) -> None:
    kind = SETTINGS[name]
    known = {variable(kind, field) for field in kind.model_fields}
    given = {key for key in SERVICES[name]["environment"] if key.startswith("ORCASTREAM_")}
    assert given - known == set()
    assert known - given - SET_BY_IMAGE == set()


@pytest.mark.parametrize("name", HARDENED)
def test_containers_have_no_more_rights_than_they_need(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only", False) is (name != "worker-cuda")


def test_images_run_as_a_fixed_user() -> None:
    final = re.findall(r"^FROM (\S+) AS (gateway|worker-cpu|worker-cuda)$", DOCKERFILE, re.MULTILINE)
    assert {base for base, _ in final} == {"runtime", "${CUDA_BASE_IMAGE}"}
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["10001:10001", "10001:10001"]


def test_workers_carry_the_cpu_operators_and_only_their_stage_has_a_compiler() -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
    copied = "COPY --from=operators /opt/operators /opt/code/orcastream/engine/native/built\n"
    assert {name for name, steps in stages.items() if copied in steps} == {"worker-cpu", "worker-cuda"}
    assert {name for name, steps in stages.items() if "g++" in steps} == {"operators"}
    assert not re.search(r"^FROM operators\b", DOCKERFILE, re.MULTILINE)
    installed = {name for name, steps in stages.items() if re.search(r"apt\.sh gcc libc6-dev\b", steps)}
    assert installed == {"worker-cuda"}, "Triton compiles with it, and loads from /tmp what it compiled"
    assert SERVICES["worker-cuda"]["tmpfs"] == ["/tmp:exec"]
    assert "ORCASTREAM_NATIVE=0 pip install" in stages["code"]
    names = list(stages)
    assert names.index("gateway") < names.index("operators"), "the classic builder builds all preceding stages"


@pytest.mark.parametrize("name", LONG_LIVED)
def test_every_service_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_every_published_port_is_local_by_default() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    for port in ports:
        assert port.startswith("${BIND_ADDRESS:-127.0.0.1}:${")


def test_redis_keeps_accepted_writes_and_evicts_nothing() -> None:
    redis = SERVICES["redis"]
    assert {"--appendonly yes", "--maxmemory-policy noeviction", "--dir /data"} <= set(redis["command"])
    assert redis["volumes"] == ["redis:/data"]


@pytest.mark.parametrize("name", ["worker", "worker-cuda"])
def test_a_workers_grace_covers_its_drain_longest_iteration_and_hand_over(name: str) -> None:
    grace = SERVICES[name]["stop_grace_period"]
    drain_s, stall_s = (WorkerSettings.model_fields[field].default for field in ("drain_grace_s", "stall_timeout_s"))
    margin_ms = (HAND_OVER_S + EXIT_S) * 1000
    assert grace == (
        f"${{ORCASTREAM_DRAIN_GRACE_S:-{drain_s:.0f}}}s${{ORCASTREAM_STALL_TIMEOUT_S:-{stall_s:.0f}}}s{margin_ms}ms"
    )


def test_the_gateways_grace_covers_its_streams_and_their_last_events() -> None:
    shutdown_s = GatewaySettings.model_fields["shutdown_grace_s"].default
    margin_ms = (GATEWAY_WRITES_S + EXIT_S) * 1000
    grace = f"${{ORCASTREAM_SHUTDOWN_GRACE_S:-{shutdown_s:.0f}}}s{margin_ms:.0f}ms"
    assert SERVICES["gateway"]["stop_grace_period"] == grace


def test_env_example_lists_every_variable_and_its_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    read = variables(re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE))
    example = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(read) - set(example) == set()
    assert {name: example[name] for name in read} == {name: default or "" for name, default in read.items()}
    fields = {variable(kind, name): field for kind in SETTINGS.values() for name, field in kind.model_fields.items()}
    for name in set(example) - set(read):
        if name.startswith("ORCASTREAM_"):
            default = fields[name].default
            shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
            assert example[name] in ("", shown), name
        else:
            assert name in COMPOSE["x-settings"], name


def test_the_image_has_every_package_and_its_build_context_nothing_else() -> None:
    packages = {"orcastream", *(room.name for room in (ROOT / "orcastream").iterdir() if room.is_symlink())}
    copied = set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE))
    assert copied == packages
    allowed = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert allowed == packages | {"deploy", "pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in allowed)


def test_the_collector_listens_where_the_services_send_and_sends_to_grafana() -> None:
    settings = COMPOSE["x-settings"]
    assert settings["OTEL_EXPORTER_OTLP_ENDPOINT"] == "${OTEL_EXPORTER_OTLP_ENDPOINT-http://collector:4318}"
    config = (ROOT / "telemetry/collector/config.yaml").read_text(encoding="utf-8")
    assert "endpoint: 0.0.0.0:4318" in config
    assert "${env:GRAFANA_OTLP_ENDPOINT}" in config
    assert "GRAFANA_OTLP_ENDPOINT" in SERVICES["collector"]["environment"]


def test_metrics_arrive_as_often_as_the_mounted_dashboards_expect() -> None:
    interval = variables(COMPOSE["x-settings"]["OTEL_METRIC_EXPORT_INTERVAL"])
    assert interval == {"OTEL_METRIC_EXPORT_INTERVAL": str(1000 * EXPORTED.every_s)}
    targets = {target: source for source, target, *_ in (one.split(":") for one in SERVICES["grafana"]["volumes"])}
    assert (ROOT / targets["/etc/orcastream/dashboards"]).resolve() == DASHBOARDS.resolve()
    config = yaml.safe_load((ROOT / "telemetry/collector/config.yaml").read_text(encoding="utf-8"))
    for name in config["service"]["pipelines"]["metrics"]["exporters"]:
        assert "batch" not in config["exporters"][name]["sending_queue"], "the newest value would come too late"


def test_the_collector_buffers_metrics_of_twenty_processes_during_retries() -> None:
    config = yaml.safe_load((ROOT / "telemetry/collector/config.yaml").read_text(encoding="utf-8"))
    limiter = config["processors"]["memory_limiter"]
    for name in config["service"]["pipelines"]["metrics"]["exporters"]:
        queue, retry = (config["exporters"][name][part] for part in ("sending_queue", "retry_on_failure"))
        assert queue["sizer"] == "requests"
        tries_s = float(retry["max_elapsed_time"].removesuffix("s"))
        assert queue["queue_size"] >= 20 * tries_s / EXPORTED.every_s
        assert queue["queue_size"] * 20_000 < (limiter["limit_mib"] - limiter["spike_limit_mib"]) * 2**20 / 2


def test_mounted_paths_exist() -> None:
    mounted = [volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    sources = [ROOT / source for source in mounted if source.startswith("./")]
    assert len(sources) == 5
    assert [source for source in sources if not source.exists()] == []


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_can_take_the_whole_machine(name: str) -> None:
    service = SERVICES[name]
    limit = re.fullmatch(r"(?:\$\{[A-Z_]+:-)?(\d+)([mg])\}?", service["mem_limit"])
    assert limit
    assert service["pids_limit"] in range(64, 4096)
    if name == "redis":
        assert int(limit[1]) * {"m": 1, "g": 1024}[limit[2]] >= 2 * 1024, (
            "twice its maxmemory: it forks to write its file"
        )


def test_a_tenants_files_leave_room_in_redis() -> None:
    environment = SERVICES["gateway"]["environment"]
    files, batches = (
        int(variables(environment[name])[name] or 0)
        for name in ("ORCASTREAM_MAX_FILES_BYTES", "ORCASTREAM_MAX_BATCHES")
    )
    assert "--maxmemory ${REDIS_MAXMEMORY:-1gb}" in SERVICES["redis"]["command"]
    stored = files + batches * GatewaySettings.model_fields["max_file_bytes"].default
    assert 0 < stored <= 2**30 // 2


def test_the_collector_keeps_failed_slow_and_taken_over_traces() -> None:
    config = yaml.safe_load((ROOT / "telemetry/collector/config.yaml").read_text(encoding="utf-8"))
    assert "tail_sampling" in config["service"]["pipelines"]["traces"]["processors"]
    assert "-contrib:" in SERVICES["collector"]["image"], "the other distribution has no such processor"
    policies = {policy["type"]: policy for policy in config["processors"]["tail_sampling"]["policies"]}
    assert set(policies) == {"status_code", "latency", "string_attribute", "probabilistic"}
    taken_over = policies["string_attribute"]["string_attribute"]
    assert (taken_over["key"], taken_over["enabled_regex_matching"]) == (Attribute.TAKEN_OVER_FROM, True)
    assert [bool(re.search(pattern, "worker-7")) for pattern in taken_over["values"]] == [True]
    assert COMPOSE["x-settings"]["OTEL_TRACES_SAMPLER_ARG"] == "${OTEL_TRACES_SAMPLER_ARG:-1.0}", "it must see them all"
    wait_s = float(config["processors"]["tail_sampling"]["decision_wait"].removesuffix("s"))
    assert wait_s > GatewaySettings.model_fields["default_timeout_s"].default


def test_prometheus_in_grafanas_container_has_the_rules() -> None:
    config = yaml.safe_load((ROOT / "telemetry/grafana/prometheus.yaml").read_text(encoding="utf-8"))
    [pattern] = config["rule_files"]
    targets = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"] if volume.startswith("./"))
    [folder] = [source for source, target in targets.items() if pattern.startswith(f"{target}/")]
    assert {path.name for path in (ROOT / folder).glob(pattern.rpartition("/")[2])} == {"orcastream.rules.yaml"}
    newest = next((one for one in PROMETHEIS if one.takes_otlp), None)
    if newest is None:
        pytest.skip(f"no Prometheus 3: {NONE_FOUND}")
    done = subprocess.run(
        [newest.promtool, "check", "config", "--syntax-only", str(ROOT / "telemetry/grafana/prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_are_those_that_the_page_lists_as_checked() -> None:
    page = (ROOT / "docs" / "compose.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- images -->\n(.*?)<!-- /images -->", page, re.DOTALL)
    assert table
    defaults = [next(iter(variables(service["image"]).values())) for service in SERVICES.values()]
    assert set(re.findall(r"`([\w./-]+:[\w.-]+)`", table[1])) >= {image for image in defaults if image and ":" in image}
    assert re.search(r"looked at on \d{4}-\d{2}-\d{2}", page)
    bases = set(re.findall(r"^ARG \w*BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert bases == {image for image in re.findall(r"`([\w./-]+:[\w.-]+)`", table[1]) if image.startswith("python:")}


def test_the_clusters_redis_has_the_same_version() -> None:
    component = yaml.safe_load((ROOT / "k8s/components/redis/kustomization.yaml").read_text(encoding="utf-8"))
    [image] = component["images"]
    [ours] = variables(SERVICES["redis"]["image"]).values()
    assert f"{image['newName']}:{image['newTag']}" == f"docker.io/{ours}-alpine"


def test_the_gateway_can_read_a_directory_of_api_keys() -> None:
    assert "${API_KEYS:-api-keys}:/api-keys:ro" in SERVICES["gateway"]["volumes"]
    assert "api-keys" in COMPOSE["volumes"]
    page = (ROOT / "docs/compose.md").read_text(encoding="utf-8")
    assert "ORCASTREAM_API_KEYS_FILE=/api-keys/keys.json" in page
    assert not [name for name in SERVICES if name != "gateway" and "api-keys" in str(SERVICES[name].get("volumes"))]
