"""The commands of the README as written, each in its own terminal; only ports differ.

So a terminal finds `orcastream` and the packages only if the README activates the environment there.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orcastream.demo import prompts
from tests.cli.processes import Terminal
from tests.docs.blocks import README, ROOT
from tests.docs.producers import redis_cli, rest_of
from tests.ports import free_port

pytestmark = pytest.mark.server

ENVIRONMENT = Path(sys.prefix)
_, COUNT = prompts.LONG_COUNT

UP = README.take("sh", "orcastream up --workers")
PYTHON = README.take("sh", "\npython\n")
OPENAI = README.take("python", "from openai")
CHAT = README.take("sh", "orcastream chat")
ASK = README.take("sh", "Count from 1 to 300")
KILL = README.take("sh", "kill -9")
READ_ON = README.take("sh", "Last-Event-ID")
PRODUCER = README.take("sh", "producer_cli.sh")
SERVED_BY = r'"served_by": ?\{"worker": ?"[^"]+?-(\d+)-\w+"'


class Shell:
    """Runs blocks of the README with the ports of this test; the environment's programs are not on PATH."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        tools = [path for path in os.environ["PATH"].split(":") if Path(path) != ENVIRONMENT / "bin"]
        if found := redis_cli():
            tools.append(str(Path(found).parent))
        self.env = {**os.environ, "PATH": ":".join(tools), "PYTHONPATH": ""}

    def here(self, code: str) -> str:
        """Return `code` with the ports and the environment of this test."""
        for port, own in self._ports.items():
            code = code.replace(port, str(own))
        return code.replace(". .venv/", f". {ENVIRONMENT}/")

    def start(self, code: str, typed: str = "", **variables: str) -> "subprocess.Popen[str]":
        """Run shell code, with `typed` as the input of its last command."""
        process = subprocess.Popen(
            ["bash", "-euc", self.here(code)],
            cwd=ROOT,
            env={**self.env, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        with process.stdin as keyboard:
            keyboard.write(typed)
        return process

    def run(self, code: str, typed: str = "", **variables: str) -> str:
        """Run shell code to its end and return the output."""
        process = self.start(code, typed, **variables)
        out, _ = rest_of(process)
        assert process.returncode == 0, out
        return out


@pytest.fixture(scope="module")
def alone() -> Shell:
    """A shell before any command of the README."""
    if not (ENVIRONMENT / "bin" / "activate").exists():
        pytest.skip("these tests do not run in an environment that could be activated")
    return Shell({"8000": free_port(), "6399": free_port()})


@pytest.fixture(scope="module")
def shell(alone: Shell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The README's `orcastream up`, and a shell to use it."""
    shell, directory = alone, tmp_path_factory.mktemp("readme")
    own = {"ORCASTREAM_PORT": shell.here("8000"), "ORCASTREAM_DATA_DIR": str(directory / "data")}
    code = shell.here(UP).replace("orcastream up", "exec orcastream up")
    up = Terminal(code, program=("bash", "-euc"), env={**shell.env, **own}, cwd=directory)
    try:
        up.wait_for("ready: ")
        while up.text.count(" serving ") < 2:
            up.wait_for(" serving ")
        yield shell
        up.signal(signal.SIGINT)
        up.wait()
    finally:
        up.close()


def content(events: list[str]) -> str:
    """Return the text in an answer's events."""
    return "".join(text for event in events for text in re.findall(r'"content": ?"([^"]*)"', event))


def events_of(stream: str) -> list[str]:
    return stream.split("\n\n")


def test_the_openai_client(shell: Shell) -> None:
    typed = shell.here(OPENAI)
    assert shell.run(PYTHON, typed) == COUNT


def test_a_conversation(shell: Shell) -> None:
    url = shell.here("http://127.0.0.1:8000")
    assert shell.run(CHAT, "Count from 1 to 300\n", ORCASTREAM_URL=url) == f"{COUNT}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_and_a_killed_worker_and_a_lost_client(shell: Shell) -> None:
    process = shell.start(ASK)
    assert process.stdout is not None
    seen = ""
    while seen.count('"event_id"') < 20 and (line := process.stdout.readline()):
        seen += line
    [pid] = re.findall(SERVED_BY, seen)
    shell.run(KILL.replace("PID", pid))
    rest, _ = rest_of(process)
    events = events_of(seen + rest)
    assert content(events) == COUNT
    assert len(re.findall(SERVED_BY, seen + rest)) == 2

    twentieth = [index for index, event in enumerate(events) if '"event_id"' in event][19]
    last = json.loads(events[twentieth].removeprefix("data: "))["event_id"]
    again = shell.run(READ_ON, ID=re.findall(r'"id": ?"([^"]+)"', seen)[0], LAST=last)
    assert content(events[: twentieth + 1]) + content(events_of(again)) == COUNT


@pytest.mark.skipif(redis_cli() is None, reason="no redis-cli found")
def test_a_producer_without_gateway(shell: Shell) -> None:
    assert "\nfinished " in "\n" + shell.run(PRODUCER)


def test_every_orcastream_command_exists(alone: Shell) -> None:
    """For commands that are not run here: their flags exist."""
    for block in README.blocks:
        for line in block.code.splitlines() if block.language == "sh" else ():
            if match := re.match(r"orcastream ((?:bench )?[\w-]+)\s+(.*)", line):
                usage = alone.run(f". .venv/bin/activate; orcastream {match[1]} --help")
                for flag in re.findall(r"--[\w-]+", match[2]):
                    assert flag in usage, line
