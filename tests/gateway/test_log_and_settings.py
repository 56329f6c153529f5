"""A gateway's log messages and settings."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.datastructures import Headers

from orcastream.gateway.admission.tenants import Tenants
from orcastream.gateway.settings import GatewaySettings
from tests.gateway.conftest import MODEL, Stage
from tests.redis_server import RedisServer


async def test_one_line_per_event_of_a_request(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    with caplog.at_level(logging.DEBUG, "orcastream.gateway"):
        answer = await client.completions.create(model=MODEL, prompt="x", user="someone")
        await client.completions.create(model=MODEL, prompt="x", extra_body={"request_id": answer.id})
    lines = [record for record in caplog.records if record.name == "orcastream.gateway"]
    assert [record.getMessage() for record in lines] == ["accepted", "ended", "repeated", "ended"]
    assert {vars(record)["request"] for record in lines} == {answer.id}
    assert vars(lines[0])["user"] == "someone"


async def test_a_refusal_logs_only_the_known_part_of_the_path(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    http = (await stage.gateway()).http()
    with caplog.at_level(logging.DEBUG, "orcastream.gateway"):
        await http.post("/v1/completions", json={})
        await http.get("/v1/requests/nobodys/events")
        await http.delete("/v1/completions")
        await http.get("/made/up")
    paths = [vars(record)["path"] for record in caplog.records if record.getMessage() == "refused"]
    assert paths == ["/v1/completions", "/v1/requests/{request_id}/events", "/v1/completions", "unknown"]


async def test_by_default_each_state_change_is_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(stage.settings().log_level.upper(), "orcastream"):
        served = await stage.gateway()
        http = served.http()
        for _ in range(3):
            assert (await http.get("/health/ready")).status_code == 503
        await stage.worker()
        for _ in range(3):
            assert (await http.get("/health/ready")).status_code == 200
        await served.openai().completions.create(model=MODEL, prompt="x")
        await stage.close()
    lines = [record for record in caplog.records if record.name.startswith(("orcastream", "uvicorn.access"))]
    assert [record.getMessage() for record in lines] == ["serving", "not ready", "ready", "stopping", "stopped"]
    assert "No worker" in vars(lines[1])["why"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"port": 70_000}, "port"),
        ({"api_keys": {"k": "not a name"}}, "api_keys"),
        ({"api_keys": {"": "alpha"}}, "api_keys"),
        ({"api_keys": {"schlüssel": "alpha"}}, "api_keys"),
        ({"default_timeout_s": 100, "max_timeout_s": 10}, "default_timeout_s"),
        ({"keep_alive_s": 0}, "keep_alive_s"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"log_level": "loud"}, "log_level"),
        ({"model": "a/tiny", "more_models": ("b/tiny",)}, "more_models"),
        ({"model": "tiny", "more_models": ("x=b", "x=c")}, "more_models"),
        ({"more_models": ("not a name=b",)}, "more_models"),
        ({"more_models": ("name=",)}, "more_models"),
    ],
)
def test_settings_are_checked_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        GatewaySettings(_env_file=None, **changes)


def test_every_setting_is_described() -> None:
    for name, field in GatewaySettings.model_fields.items():
        assert field.description, name


def test_keys_come_from_the_environment_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_API_KEYS", '{"sk-secret": "alpha"}')
    settings = GatewaySettings(_env_file=None)
    assert "sk-secret" not in repr(settings)
    tenants = Tenants(settings.api_keys)
    assert tenants.of(Headers({"authorization": "bearer sk-secret"})).tenant == "alpha"
    assert Tenants({}).of(Headers()).tenant == "default"


async def test_a_server_that_evicts_is_warned_of(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis(options=["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"])
    stage = stage_of(server.url)
    await stage.worker()
    http = (await stage.gateway()).http()
    told = [(await http.get("/health/ready")).json() for _ in range(2)]
    assert [one["status"] for one in told] == ["ready", "ready"]
    assert "maxmemory-policy: got allkeys-lru, allowed: noeviction" in told[1]["warning"]
    (line,) = [record for record in caplog.records if record.getMessage() == "Redis may lose requests"]
    assert vars(line)["why"] == told[1]["warning"]
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
    assert "warning" not in (await http.get("/health/ready")).json()
