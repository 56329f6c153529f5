"""docker-compose.yml says what docs/compose.md promises, and agrees with the settings of the processes."""

import re
import tomllib

import pytest

from cli.parse import variable
from gateway.main import _MARGIN_S as GATEWAY_WRITES_S
from gateway.settings import GatewaySettings
from tests.compose.files import COMPOSE, DOCKERFILE, ROOT, SERVICES, needed_by, variables
from worker.settings import WorkerSettings

EXIT_S = 5
"""Time that a process which has done its work may take to exit."""
HAND_OVER_S = 5
"""Time that a worker may take to hand over, once its last iteration is done."""
SETTINGS = {"gateway": GatewaySettings, "worker": WorkerSettings, "worker-cuda": WorkerSettings}
SET_BY_IMAGE = {"ORCASTREAM_ADMIN_HOST", "ORCASTREAM_ADMIN_PORT"}
HARDENED = sorted(set(SERVICES) - {"grafana"})
LONG_LIVED = sorted(set(SERVICES) - {"load"})


def test_up_starts_the_whole_service_and_profiles_the_rest() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"worker-cuda": ["gpu"], "load": ["load"]}
    assert set(SERVICES) - set(profiles) == {"redis", "gateway", "worker", "collector", "grafana"}
    assert variables(SERVICES["worker"]["deploy"]["replicas"]) == {"WORKERS": "2"}


def test_gateway_and_worker_need_redis_alone() -> None:
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
    copied = "COPY --from=operators /opt/operators /opt/code/engine/native/built\n"
    assert {name for name, steps in stages.items() if copied in steps} == {"worker-cpu", "worker-cuda"}
    assert {name for name, steps in stages.items() if "g++" in steps} == {"operators"}
    assert not re.search(r"^FROM operators\b", DOCKERFILE, re.MULTILINE)
    assert "ORCASTREAM_NATIVE=0 pip install" in stages["code"]
    names = list(stages)
    assert names.index("gateway") < names.index("operators"), "the classic builder builds all that stands above"


@pytest.mark.parametrize("name", LONG_LIVED)
def test_every_service_says_whether_it_is_well(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_every_published_port_stays_on_this_machine_unless_told_otherwise() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    for port in ports:
        assert port.startswith("${BIND_ADDRESS:-127.0.0.1}:${")


def test_redis_keeps_what_it_accepted_and_evicts_nothing() -> None:
    redis = SERVICES["redis"]
    assert {"--appendonly yes", "--maxmemory-policy noeviction", "--dir /data"} <= set(redis["command"])
    assert redis["volumes"] == ["redis:/data"]


@pytest.mark.parametrize("name", ["worker", "worker-cuda"])
def test_grace_of_a_worker_is_its_drain_its_longest_iteration_and_the_hand_over(name: str) -> None:
    grace = SERVICES[name]["stop_grace_period"]
    drain_s, stall_s = (WorkerSettings.model_fields[field].default for field in ("drain_grace_s", "stall_timeout_s"))
    margin_ms = (HAND_OVER_S + EXIT_S) * 1000
    assert grace == (
        f"${{ORCASTREAM_DRAIN_GRACE_S:-{drain_s:.0f}}}s${{ORCASTREAM_STALL_TIMEOUT_S:-{stall_s:.0f}}}s{margin_ms}ms"
    )


def test_grace_of_the_gateway_is_that_of_its_streams_and_of_their_last_events() -> None:
    shutdown_s = GatewaySettings.model_fields["shutdown_grace_s"].default
    margin_ms = (GATEWAY_WRITES_S + EXIT_S) * 1000
    grace = f"${{ORCASTREAM_SHUTDOWN_GRACE_S:-{shutdown_s:.0f}}}s{margin_ms:.0f}ms"
    assert SERVICES["gateway"]["stop_grace_period"] == grace


def test_env_example_knows_every_variable_and_its_default() -> None:
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


def test_the_image_has_every_package_and_its_build_context_has_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
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


def test_what_is_mounted_exists() -> None:
    mounted = [volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    sources = [ROOT / source for source in mounted if source.startswith("./")]
    assert len(sources) == 3
    assert [source for source in sources if not source.exists()] == []


def test_a_directory_of_api_keys_is_there_for_the_gateway_to_read() -> None:
    assert "${API_KEYS:-api-keys}:/api-keys:ro" in SERVICES["gateway"]["volumes"]
    assert "api-keys" in COMPOSE["volumes"]
    page = (ROOT / "docs/compose.md").read_text(encoding="utf-8")
    assert "ORCASTREAM_API_KEYS_FILE=/api-keys/keys.json" in page
    assert not [name for name in SERVICES if name != "gateway" and "api-keys" in str(SERVICES[name].get("volumes"))]
