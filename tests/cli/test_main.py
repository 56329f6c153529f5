"""The command line as a whole."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orcastream.bench.main import COMMANDS as BENCHMARKS
from orcastream.cli.commands import COMMANDS
from orcastream.cli.main import main
from orcastream.engine.schedule.policies import POLICIES
from tests.cli.processes import ROOT


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", ["version", "--version", "-V"])
def test_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 0
    assert capsys.readouterr().out.startswith("orcastream ")


def test_version_accepts_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "extra"]) == 2
    assert capsys.readouterr() == ("", "orcastream version: got 'extra', allowed: no arguments\n")


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == f"orcastream: command: got 'serve', allowed: {', '.join(COMMANDS)}\n"


@pytest.mark.parametrize("command", ["up", "gateway", "worker"])
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "--lease-ms", "1"]) == 2
    assert capsys.readouterr().err == (
        f"orcastream {command}: lease_ms (--lease-ms, ORCASTREAM_LEASE_MS): got '1', "
        "allowed: a whole number, 500 to 600000\n"
    )


@pytest.mark.parametrize("asked", ["--delete", "--cancel", "--ordered", "--output=there"])
def test_job_options_are_refused_for_the_list(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", asked]) == 2
    name = asked.partition("=")[0]
    assert capsys.readouterr().err.startswith(f"orcastream results: job (JOB): got nothing, allowed with {name}: ")


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("127.0.0.1", "port: port {port} on 127.0.0.1 is in use"),
        ("a..b", "host: got 'a..b', allowed: an address or a name of this machine"),
    ],
)
def test_an_unusable_listen_address_is_one_line(
    host: str, complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["gateway", "--redis-url", "redis://127.0.0.1:1", "--host", host, "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream gateway: {complaint.format(port=port)}")
    assert error.count("\n") == 1


def test_a_missing_extra_is_one_line() -> None:
    program = "import sys; sys.modules['httpx'] = None; from orcastream.cli.main import main; sys.exit(main(['chat']))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == "orcastream chat: the package httpx is not installed: pip install 'orcastream[chat]'\n"


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from orcastream.cli.main import main; main(['--help']); "
        "print([name for name in ('torch', 'transformers', 'pydantic', 'redis', 'fastapi') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_help_of_a_command_waits_for_no_torch() -> None:
    commands = ["up", "gateway", "worker", *(f"bench {name}" for name in BENCHMARKS)]
    program = (
        "import contextlib, sys\n"
        "from orcastream.cli.main import main\n"
        f"for command in {commands}:\n"
        "    with contextlib.suppress(SystemExit): main([*command.split(), '--help'])\n"
        "    print(command, [name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    lines = shown.stdout.splitlines()
    for command in commands:
        assert any(line.startswith(f"usage: orcastream {command} ") for line in lines)
        assert f"{command} []" in lines


@pytest.mark.parametrize("command", ["up", "worker"])
def test_help_lists_the_policies(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert "{" + ",".join(sorted(POLICIES)) + "}" in shown


def test_tokenize_prints_a_list_for_a_payload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "What is 7 + 5?"]) == 0
    text_ids = json.loads(capsys.readouterr().out)
    assert main(["tokenize", "--chat", "What is 7 + 5?"]) == 0
    chat_ids = json.loads(capsys.readouterr().out)
    assert all(isinstance(token, int) for token in text_ids)
    assert len(chat_ids) > len(text_ids)
    assert any(chat_ids[start : start + len(text_ids)] == text_ids for start in range(len(chat_ids)))


def test_tokenize_reads_standard_input() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "orcastream.cli.main", "tokenize", "-"],
        input="Spell orca",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert json.loads(shown.stdout)


@pytest.mark.parametrize("argument", [b"\xff", b"-"])
def test_tokenize_accepts_only_text(argument: bytes) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "orcastream.cli.main", "tokenize", argument],
        input=b"\xff",
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert (shown.returncode, shown.stdout) == (2, b"")
    assert shown.stderr.startswith(b"orcastream tokenize: text: got ")
    assert shown.stderr.count(b"\n") == 1


def test_tokenize_names_a_missing_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tokenize", "--model", str(tmp_path), "text"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream tokenize: model: got '{tmp_path}', allowed: ")
    assert error.count("\n") == 1


def test_tokenize_names_a_path_that_does_not_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["tokenize", "--model", "~/nope", "text"]) == 2
    told = f"model: got '{tmp_path}/nope', allowed: a directory or hub id with a tokenizer (no such directory)"
    assert capsys.readouterr().err == f"orcastream tokenize: {told}\n"
