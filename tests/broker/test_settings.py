"""Settings shared by all processes."""

import pytest
from pydantic import ValidationError

from orcastream.broker.settings import BrokerSettings
from orcastream.schemas.errors import InvalidRequest


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    for name in BrokerSettings.model_fields:
        monkeypatch.delenv(f"ORCASTREAM_{name.upper()}", raising=False)


def test_environment_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(".env", "w") as file:
        file.write("ORCASTREAM_LEASE_MS=700\nORCASTREAM_NAMESPACE=filed\nOTHER=1\n")
    monkeypatch.setenv("ORCASTREAM_NAMESPACE", "fromenv")
    monkeypatch.setenv("ORCASTREAM_MODEL", "/models/Qwen3-0.6B/")
    settings = BrokerSettings()
    assert (settings.lease_ms, settings.namespace, settings.retention_ms) == (700, "fromenv", 600_000)
    assert settings.keys().dead == "fromenv:{Qwen3-0.6B}:dead"
    assert BrokerSettings(served_model_name="mine").served_name == "mine"


@pytest.mark.parametrize(
    ("name", "value"),
    [("lease_ms", 499), ("lease_ms", 600_001), ("namespace", "a b"), ("max_deliveries", 0), ("served_model_name", "")],
)
def test_an_out_of_range_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        BrokerSettings(**{name: value})  # type: ignore[arg-type]


def test_the_demo_model_has_no_name_yet() -> None:
    with pytest.raises(InvalidRequest, match="model"):
        BrokerSettings().keys()


def test_every_setting_is_described() -> None:
    assert all(field.description for field in BrokerSettings.model_fields.values())
