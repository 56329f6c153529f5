"""What a gateway says in its log, and what may be set."""

import logging
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.settings import GatewaySettings
from gateway.tenants import Tenants
from tests.gateway.conftest import MODEL, Stage


async def test_one_line_per_event_of_a_request(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    with caplog.at_level(logging.INFO, "orcastream.gateway"):
        answer = await client.completions.create(model=MODEL, prompt="x", user="someone")
        await client.completions.create(model=MODEL, prompt="x", extra_body={"request_id": answer.id})
    lines = [record for record in caplog.records if record.name == "orcastream.gateway"]
    assert [record.getMessage() for record in lines] == ["accepted", "ended", "repeated", "ended"]
    assert {vars(record)["request"] for record in lines} == {answer.id}
    assert vars(lines[0])["user"] == "someone"


async def test_nothing_is_said_by_default(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    logging.getLogger("orcastream").setLevel(stage.settings().log_level.upper())
    await client.completions.create(model=MODEL, prompt="x")
    assert not [record for record in caplog.records if record.name.startswith(("orcastream", "uvicorn"))]
    logging.getLogger("orcastream").setLevel(logging.NOTSET)


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
    assert tenants.of({"authorization": "bearer sk-secret"}) == "alpha"
    assert Tenants({}).of({}) == "default"
