"""A mistyped variable is reported; one of another process, or of another program, is not."""

import os
from pathlib import Path

import pytest

from orcastream.cli.main import main
from orcastream.cli.settings import TokenizeSettings
from orcastream.cli.variables import mistyped

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
        ("ORCASTREAM_CHATT", "ORCASTREAM_CHAT"),
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
