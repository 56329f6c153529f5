"""docker-compose.yml as rendered by Compose itself, which needs no engine."""

import json
import os
import subprocess
from functools import cache
from typing import Any

import pytest

from tests.compose.files import ROOT


@cache
def compose_missing() -> bool:
    """Whether this machine has no `docker compose`."""
    try:
        return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0
    except OSError:
        return True


pytestmark = pytest.mark.skipif(compose_missing(), reason="no docker compose on this machine")


def rendered(*arguments: str, **variables: str) -> dict[str, Any]:
    """`docker compose config` with these variables and no others."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    shown = subprocess.run(
        ["docker", "compose", "--env-file", os.devnull, *arguments, "config", "--format", "json"],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    config: dict[str, Any] = json.loads(shown.stdout)
    return config


def test_rendering_without_changes() -> None:
    services = rendered()["services"]
    assert set(services) == {"redis", "gateway", "worker", "collector", "grafana"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert (services["worker"]["stop_grace_period"], services["gateway"]["stop_grace_period"]) == ("1m30s", "15s")
    assert services["gateway"]["environment"]["ORCASTREAM_REDIS_URL"] == "redis://redis:6379/0"
    assert services["gateway"]["environment"]["OTEL_RESOURCE_ATTRIBUTES"] == "deployment.environment.name=compose"


def test_one_variable_feeds_the_drain_and_the_grace_period() -> None:
    worker = rendered(ORCASTREAM_DRAIN_GRACE_S="120.5", ORCASTREAM_STALL_TIMEOUT_S="30")["services"]["worker"]
    assert worker["environment"]["ORCASTREAM_DRAIN_GRACE_S"] == "120.5"
    assert worker["stop_grace_period"] == "2m40.5s"


def test_a_password_reaches_redis_its_health_check_and_its_clients() -> None:
    services = rendered(REDIS_PASSWORD="secret")["services"]
    assert services["redis"]["command"][-1] == '--requirepass "secret"'
    assert services["redis"]["environment"]["REDISCLI_AUTH"] == "secret"
    assert services["worker"]["environment"]["ORCASTREAM_REDIS_URL"] == "redis://:secret@redis:6379/0"


def test_telemetry_can_be_turned_off() -> None:
    services = rendered(OTEL_EXPORTER_OTLP_ENDPOINT="")["services"]
    assert services["worker"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == ""


def test_profiles() -> None:
    services = rendered("--profile", "gpu", "--profile", "load", GPUS_PER_WORKER="2")["services"]
    [device] = services["worker-cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 2, ["gpu"])
    assert services["load"]["command"][0] == "--url=http://gateway:8000"


def test_base_images_and_mirrors_reach_the_build() -> None:
    arguments = rendered(BASE_IMAGE="base:1", PIP_INDEX_URL="https://index.test/simple")["services"]["worker"]["build"][
        "args"
    ]
    assert arguments["BASE_IMAGE"] == "base:1"
    assert arguments["PIP_INDEX_URL"] == "https://index.test/simple"
    assert arguments["APT_MIRROR"] == ""


def test_weights_come_from_a_volume_or_a_directory() -> None:
    def source(**variables: str) -> tuple[str, str]:
        [volume] = rendered(**variables)["services"]["gateway"]["volumes"]
        return volume["type"], volume["source"]

    assert source() == ("volume", "models")
    assert source(MODELS="/srv/models") == ("bind", "/srv/models")


def test_api_keys_come_from_a_volume_or_a_directory() -> None:
    def mounted(**variables: str) -> Any:
        (found,) = (
            one for one in rendered(**variables)["services"]["gateway"]["volumes"] if one["target"] == "/api-keys"
        )
        return found

    assert (mounted()["type"], mounted()["read_only"]) == ("volume", True)
    assert (mounted(API_KEYS="/srv/keys")["type"], mounted(API_KEYS="/srv/keys")["source"]) == ("bind", "/srv/keys")
