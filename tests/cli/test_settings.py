"""The settings of all commands are consistent, and each has a description and a range."""

import pwd
import re
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from orcastream.cli.allowed import allowed_values, description, unit
from orcastream.cli.console.settings import TopSettings
from orcastream.cli.embedded_redis import RedisUnavailable
from orcastream.cli.environment import as_environment
from orcastream.cli.errors import UserError
from orcastream.cli.jobs.settings import ResultsSettings, SubmitSettings
from orcastream.cli.main import main
from orcastream.cli.parse import load_settings
from orcastream.cli.served_model import demo_model, with_model, with_redis
from orcastream.cli.settings import ChatSettings, CompletionSettings, TokenizeSettings
from orcastream.cli.settings_table import settings_table
from orcastream.cli.up_settings import UpSettings, default_data_dir
from orcastream.gateway.settings import GatewaySettings
from orcastream.worker.settings import WorkerSettings
from tests.cli.processes import ROOT

KINDS: tuple[type[BaseSettings], ...] = (
    GatewaySettings,
    WorkerSettings,
    UpSettings,
    ChatSettings,
    TopSettings,
    SubmitSettings,
    ResultsSettings,
    TokenizeSettings,
    CompletionSettings,
)
FIELDS = [
    pytest.param(kind, name, field, id=f"{kind.__name__}.{name}")
    for kind in KINDS
    for name, field in kind.model_fields.items()
]

_UNIT_BY_ENDING = {"_s": "s", "_ms": "ms", "_bytes": "bytes"}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("kind", "name", "field"), FIELDS)
def test_every_setting_is_described_and_bounded(kind: type[BaseSettings], name: str, field: FieldInfo) -> None:
    assert len(description(field)) > 10
    allowed = allowed_values(field) or ""
    if allowed.startswith(("a number", "a whole number")):
        assert re.search(r"\d", allowed), "a number has a range"
    for ending, its_unit in _UNIT_BY_ENDING.items():
        if name.endswith(ending):
            assert unit(field) == its_unit


@pytest.mark.parametrize("name", sorted(set(GatewaySettings.model_fields) & set(WorkerSettings.model_fields)))
def test_settings_shared_by_gateway_and_worker_have_one_type(name: str) -> None:
    gateway, worker = GatewaySettings.model_fields[name], WorkerSettings.model_fields[name]
    assert gateway.annotation == worker.annotation


def test_the_readme_contains_the_table_of_settings() -> None:
    _, between, _ = re.split("<!-- /?settings -->", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert between.strip() == settings_table()


def test_up_passes_its_settings_to_gateway_and_worker() -> None:
    given = ("--max-batch-size", "7", "--keep-alive-s", "3", "--lease-ms", "900", "--api-keys", '{"key": "tenant"}')
    settings = load_settings(UpSettings, given, "up")
    assert as_environment(settings, WorkerSettings) == {
        "ORCASTREAM_MAX_BATCH_SIZE": "7",
        "ORCASTREAM_LEASE_MS": "900",
    }
    assert as_environment(settings, GatewaySettings) == {
        "ORCASTREAM_KEEP_ALIVE_S": "3.0",
        "ORCASTREAM_LEASE_MS": "900",
        "ORCASTREAM_API_KEYS": '{"key": "tenant"}',
    }


def test_without_a_model_the_demo_model_is_served() -> None:
    settings = with_model(load_settings(WorkerSettings, (), "worker"))
    assert (settings.model, settings.served_name) == (demo_model(), "orca-demo")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--model", "Qwen/Qwen3-0.6B"), "Qwen3-0.6B"),
        (("--model", "./mine/"), "mine"),
        (("--model", "./mine", "--served-model-name", "yours"), "yours"),
        (("--served-model-name", "mine"), "mine"),
    ],
)
def test_a_model_is_served_under_the_last_part_of_its_name(
    arguments: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").touch()
    assert with_model(load_settings(WorkerSettings, arguments, "worker")).served_name == name


def test_the_current_directory_is_served_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").touch()
    monkeypatch.chdir(tmp_path / "mine")
    assert with_model(load_settings(WorkerSettings, ("--model", "."), "worker")).served_name == "mine"


def test_a_directory_name_that_is_invalid_in_a_key_requires_a_name(tmp_path: Path) -> None:
    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").touch()
    with pytest.raises(UserError, match=r"served_model_name .*: got 'my model', allowed: 1 to 128"):
        with_model(load_settings(WorkerSettings, ("--model", "my model"), "worker"))


@pytest.mark.parametrize("model", ["/no/such/model", "./nothing", "empty", "~no-such-user/model"])
def test_a_directory_without_a_model_is_reported(model: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"model .*: got '{model}', allowed: a directory with a config.json, or a hub"):
        with_model(load_settings(WorkerSettings, ("--model", model), "worker"))


def test_a_worker_alone_needs_a_redis() -> None:
    with pytest.raises(UserError, match=r"redis_url .* got nothing, allowed: a URL"):
        with_redis(load_settings(WorkerSettings, (), "worker"))


def test_data_is_stored_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "orcastream"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")  # the standard says to ignore this
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local" / "share" / "orcastream"


def test_messages_for_users_are_user_errors() -> None:
    assert issubclass(RedisUnavailable, UserError)


def test_without_a_home_directory_a_data_directory_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert main(["up"]) == 2
    assert capsys.readouterr().err == (
        "orcastream up: data_dir (--data-dir, ORCASTREAM_DATA_DIR): got nothing, "
        "allowed: a directory, because this user has no home directory\n"
    )
