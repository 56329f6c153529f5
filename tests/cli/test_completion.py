"""The scripts of `orcastream completion`, in real shells."""

import shutil
import subprocess

import pytest

from orcastream.cli.commands import COMMANDS
from orcastream.cli.main import main
from orcastream.engine.schedule.policies import POLICIES

CASES = [
    ("", ["gateway", "submit", "dead-letters"], ["--json", "list"]),
    ("ga", ["gateway"], ["up"]),
    ("requests ", ["list", "show", "cancel"], ["purge", "gateway"]),
    ("requests list --", ["--json", "--class", "--state", "--redis-url"], ["--content"]),
    ("requests list --class ", ["realtime", "low"], ["--json"]),
    ("worker --pol", ["--policy"], ["--port"]),
    ("worker --policy ", sorted(POLICIES), ["--policy"]),
    ("up --redis-url x --no-", ["--no-prefix-cache"], ["--no-metrics"]),
    ("bench ", ["offline", "serve"], ["gateway"]),
    ("completion ", ["bash", "zsh", "fish"], ["--json"]),
]


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def shell_says(*command: str) -> list[str]:
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.stderr == ""
    return shown.stdout.splitlines()


@pytest.mark.parametrize(("typed", "there", "not_there"), CASES)
def test_in_bash(typed: str, there: list[str], not_there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    needs("bash")
    words = ["orcastream", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    asking = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _orcastream; printf "%s\\n" "${{COMPREPLY[@]}}"'
    found = shell_says("bash", "--norc", "-c", script("bash", capsys) + asking)
    assert set(there) <= set(found)
    assert not set(not_there) & set(found)


@pytest.mark.parametrize(("typed", "there", "not_there"), CASES)
def test_in_zsh(typed: str, there: list[str], not_there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What the function passes to zsh: zsh's own matching and menus are out of scope."""
    needs("zsh")
    words = ["orcastream", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    stubs = "compdef() { : }\n_files() { : }\n_describe() { print -l -- ${(P)2}; (( ${#${(P)2}} )) }\n"
    asking = f"words=({quoted}); CURRENT={len(words)}; _orcastream\n"
    found = [line.partition(":")[0] for line in shell_says("zsh", "-f", "-c", stubs + script("zsh", capsys) + asking)]
    found = [word for word in found if word.startswith(words[-1])]
    assert set(there) <= set(found)
    assert not set(not_there) & set(found)


@pytest.mark.parametrize(("typed", "there", "not_there"), CASES)
def test_in_fish(typed: str, there: list[str], not_there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    needs("fish")
    asking = f"complete -C 'orcastream {typed}'"
    found = [line.split("\t")[0] for line in shell_says("fish", "-N", "-c", script("fish", capsys) + asking)]
    assert set(there) <= set(found)
    assert not set(not_there) & set(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = script(shell, capsys)
    assert all(name in shown for name in COMMANDS)


def test_another_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.startswith("orcastream completion: shell ")
