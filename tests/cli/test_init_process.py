"""A command that is process 1 of a container reaps orphans, takes signals, and ends with its own exit code."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import Terminal
from tests.redis_server import RedisServer, one_server

pytestmark = pytest.mark.server
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
ORPHANED = ("sh", "-c", '(sleep 0 &); exec "$@"', "sh")
"""Runs a command in the place of this process, whose orphan it gets."""


@pytest.fixture
def start(run: Callable[..., Terminal], tmp_path: Path) -> Callable[..., Terminal]:
    """Starts `orcastream` as process 1."""
    if not shutil.which("unshare") or subprocess.run([*CONTAINER, "true"], check=False, stderr=-3).returncode:
        pytest.skip("needs unshare, and a kernel that lets this user make namespaces")
    program = (*CONTAINER, *ORPHANED, sys.executable, "-P", "-m", "orcastream.cli.main")
    return lambda *arguments: run(*arguments, program=program, cwd=tmp_path)


@one_server("system")
@pytest.mark.parametrize(
    ("command", "begun"),
    [(("up", "--workers", "1"), "^gateway .* serving"), (("gateway", "--workers", "2"), "serving")],
)
def test_process_1_reaps_orphans_and_stops_in_order(
    command: tuple[str, ...], begun: str, start: Callable[..., Terminal], redis_server: RedisServer
) -> None:
    console = start(*command, "--port", "0", "--redis-url", redis_server.url)
    console.wait_for(begun)
    [first] = children(console.process.pid)
    [serving] = children(first)  # and no zombie
    assert len(children(serving)) == 2
    for process in (first, serving):  # as a terminal does
        os.kill(process, signal.SIGINT)
    assert console.wait() == 0


def test_the_exit_code_is_that_of_the_command(start: Callable[..., Terminal]) -> None:
    console = start("up", "--model", "/nowhere")
    assert console.wait() == 2
    assert "got '/nowhere', allowed: a directory with a config.json" in console.text


def children(pid: int) -> list[int]:
    """The processes of which this is the parent, zombies included."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
