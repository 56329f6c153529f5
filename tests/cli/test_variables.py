"""A mistyped variable is reported; one of another process, or of another program, is not."""

import os
from pathlib import Path

import pytest

from orcastream.broker.settings import BrokerSettings
from orcastream.cli.completion.tree import settings_classes
from orcastream.cli.main import main
from orcastream.cli.parse import load_settings
from orcastream.cli.settings import ChatSettings, TokenizeSettings
from orcastream.cli.up_settings import UpSettings
from orcastream.cli.variables import has_variable, mistyped

SERVICE_LINKS = (
    "ORCASTREAM_GATEWAY_SERVICE_HOST",
    "ORCASTREAM_GATEWAY_SERVICE_PORT",
    "ORCASTREAM_GATEWAY_SERVICE_PORT_HTTP",
    "ORCASTREAM_GATEWAY_PORT",
    "ORCASTREAM_GATEWAY_PORT_8000_TCP",
    "ORCASTREAM_GATEWAY_PORT_8000_TCP_PROTO",
    "ORCASTREAM_GATEWAY_PORT_8000_TCP_ADDR",
    "ORCASTREAM_SERVICE_HOST",
    "ORCASTREAM_SERVICE_PORT",
)
"""What Kubernetes sets in every container beside services of these names."""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ORCASTREAM_LEASE_SM", "ORCASTREAM_LEASE_MS"),
        ("ORCASTREAM_MAX_BATCHSIZE", "ORCASTREAM_MAX_BATCH_SIZE"),
        ("ORCASTREAM_REDIS_ULR", "ORCASTREAM_REDIS_URL"),
        ("ORCASTREAM_SERVED_MODELNAME", "ORCASTREAM_SERVED_MODEL_NAME"),
        ("orcastream_max_waits", "ORCASTREAM_MAX_WAIT_S"),
        ("ORCASTREAM_API_KEYY", "ORCASTREAM_API_KEY"),
    ],
)
def test_a_mistyped_variable_is_named_with_the_correct_one(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert list(mistyped(TokenizeSettings)) == [(name.upper(), meant)]


@pytest.mark.parametrize(
    "name",
    [
        "ORCASTREAM_MAX_BATCH_SIZE",  # the worker's
        "ORCASTREAM_KEEP_ALIVE_S",  # the gateway's
        "ORCASTREAM_WORKERS",  # that of `up`
        "ORCASTREAM_API_KEY",
        "ORCASTREAM_API_KEYS",
        "ORCASTREAM_MAX_TOKENS",  # a flag of `chat`
        "ORCASTREAM_CHATT",  # like a flag
        "ORCASTREAM_NATIVE",
        "ORCASTREAM_IMAGE",
        "ORCASTREAM_",
        "OTHER_LEASE_SM",
        *SERVICE_LINKS,
    ],
)
def test_variables_of_others_are_no_mistakes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert list(mistyped(TokenizeSettings)) == []


def test_a_line_of_dotenv_counts_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ORCASTREAM_LEASE_SM=1\nORCASTREAM_PORT=1\n# ORCASTREAM_LEASE_M=1\n")
    assert list(mistyped(TokenizeSettings)) == [("ORCASTREAM_LEASE_SM", "ORCASTREAM_LEASE_MS")]


def test_the_command_warns_and_continues(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_MODELL", "x")
    assert main(["tokenize", "text"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("[")
    assert (
        printed.err
        == "orcastream tokenize: ORCASTREAM_MODELL: there is no such setting; did you mean ORCASTREAM_MODEL?\n"
    )


@pytest.mark.parametrize("in_file", [False, True])
def test_a_variable_named_like_an_argument_is_ignored_with_a_warning(
    in_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"ORCASTREAM_URL": "http://gateway", "ORCASTREAM_MAX_TOKENS": "many", "orcastream_system": "x"}
    if in_file:
        (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    else:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
    settings = load_settings(ChatSettings, (), "chat")
    assert (settings.url, settings.max_tokens, settings.system) == ("http://gateway", None, None)
    assert capsys.readouterr().err.splitlines() == [
        "orcastream chat: ORCASTREAM_SYSTEM: ignored, because only --system sets this",
        "orcastream chat: ORCASTREAM_MAX_TOKENS: ignored, because only --max-tokens sets this",
    ]
    with pytest.raises(SystemExit):
        load_settings(ChatSettings, ("--help",), "chat")
    shown = capsys.readouterr().out
    assert "ORCASTREAM_URL" in shown
    assert "ORCASTREAM_MAX_TOKENS" not in shown


def test_no_variable_deletes_a_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_JOB", "mine")
    monkeypatch.setenv("ORCASTREAM_DELETE", "true")
    assert main(["results"]) == 2  # no Redis
    assert capsys.readouterr().err.splitlines()[:2] == [
        "orcastream results: ORCASTREAM_JOB: ignored, because only JOB sets this",
        "orcastream results: ORCASTREAM_DELETE: ignored, because only --delete sets this",
    ]


def test_a_variable_means_the_same_to_every_command() -> None:
    service = set(UpSettings.model_fields)
    kinds = list(settings_classes())
    assert len(kinds) > 10
    for kind in kinds:
        own = {name for name in kind.model_fields if has_variable(kind, name)}
        assert own - service <= {"url", "api_key"}
        if issubclass(kind, BrokerSettings):
            assert own >= set(BrokerSettings.model_fields)


@pytest.mark.parametrize("command", [("tokenize", "text"), ("up",), ("requests", "list")])
def test_a_current_directory_that_is_gone_is_told(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(command) == 2
    assert capsys.readouterr().err.endswith(
        ": the current directory cannot be used (No such file or directory): change to another one\n"
    )


def test_a_named_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / ".env")
    assert main(["tokenize", "text"]) == 2
    assert "tokenize: .env: got a named pipe, allowed: a regular file" in capsys.readouterr().err


def test_a_dotenv_that_cannot_be_looked_up_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".env").symlink_to(".env")
    assert main(["tokenize", "text"]) == 2
    assert (
        capsys.readouterr().err == "orcastream tokenize: .env in the current directory cannot be looked up: "
        "Too many levels of symbolic links\n"
    )


def test_a_directory_named_dotenv_is_no_settings(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert main(["tokenize", "text"]) == 0
