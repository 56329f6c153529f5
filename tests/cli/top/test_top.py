"""`orcastream top`, printed once and live in a terminal, against real servers and a real worker."""

import asyncio
import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orcastream.broker.link import Link
from orcastream.broker.presence import Presence
from orcastream.broker.queue import RequestQueue
from orcastream.cli.main import main
from orcastream.cli.top import command
from orcastream.client import Client
from orcastream.schemas.keys import Keys
from tests.broker.scripted import ScriptedWorker, enqueue, make_request
from tests.chaos.patches import pace
from tests.cli.processes import ROOT
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import MODEL, WorkerProcess

pytestmark = one_server("system")

KEYS = Keys("demo")
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


async def _fill(server: RedisServer) -> None:
    """Set up a running and a waiting request of class high, and one of class low; one worker lives, one is gone with
    its request, and one has drained.
    """
    link = await Link.open(server.url)
    await RequestQueue(link, KEYS).ensure_groups()
    for request_id, priority_class in (("a", "high"), ("b", "high"), ("c", "low")):
        await enqueue(link, KEYS, make_request(request_id, priority_class=priority_class))
    gone = await ScriptedWorker(server.url, KEYS, "gone", salt=7).connect()
    await gone.take()
    info = {"state": "draining", "running": 3, "capacity": 8, "blocks_used": 10, "blocks_total": 40, "preemptions": 2}
    await Presence(link, KEYS, "there").beat({**info, "clock_s": "1.5", "iterations": "soon"}, ttl_ms=60_000)
    drained = Presence(link, KEYS, "drained")
    await drained.beat({"state": "draining"}, ttl_ms=60_000)
    await drained.leave()
    await link.call("XADD", KEYS.dead, "*", "entry", "high 1-1")
    await gone.close()
    await link.close()


def once(server: RedisServer, capsys: pytest.CaptureFixture[str], *flags: str, model: str = KEYS.model) -> str:
    where = ["--redis-url", server.url, "--served-model-name", model, "--interval-s", "0.2"]
    assert main(["top", "--once", *where, *flags]) == 0
    return capsys.readouterr().out


def test_top_shows_queue_and_workers(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_fill(redis_server))
    told: dict[str, Any] = json.loads(once(redis_server, capsys, "--json"))
    assert (told["model"], told["dead_letters"]) == ("demo", 1)
    assert [(row["class"], row["waiting"], row["claimed"]) for row in told["queue"]] == [
        ("realtime", 0, 0),
        ("high", 1, 1),
        ("normal", 0, 0),
        ("low", 1, 0),
    ]
    assert told["queue"][3]["oldest_s"] > 0
    gone, there = told["workers"]
    assert (gone["worker"], gone["state"], gone["holds"], gone["running"]) == ("gone", "gone", 1, None)
    assert (there["state"], there["running"], there["capacity"], there["preemptions"]) == ("draining", 3, 8, 2)
    assert (there["iterations"], there["rates"]["iterations"]) == (None, None)
    shown = once(redis_server, capsys)
    for part in ("orcastream demo", "1 dead letters", "draining", "3/8", "10/40", "gone"):
        assert part in shown


def test_every_column_fits_on_80_columns(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    async def report() -> None:
        link = await Link.open(redis_server.url)
        await RequestQueue(link, KEYS).ensure_groups()
        info = {"state": "serving", "running": 32, "capacity": 32, "blocks_used": 10, "blocks_total": 8192}
        await Presence(link, KEYS, "vm-14007-b2e2161c").beat({**info, "preemptions": 2}, ttl_ms=60_000)
        await link.close()

    asyncio.run(report())
    lines = once(redis_server, capsys).splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = [line.split() for line in lines if line.startswith(" worker")]
    (row,) = [line.split() for line in lines if line.startswith(" vm-14007")]
    assert head[-2:] == ["preempted", "holds"]
    assert row[-2:] == ["2", "0"]


def test_an_empty_queue_without_workers(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no worker" in once(redis_server, capsys)
    assert json.loads(once(redis_server, capsys, "--json"))["rates"]["output_tokens"] is None


def test_impossible_requests_are_one_line(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, code, complaint in (
        (["--redis-url", redis_server.url], 2, "standard output is not a terminal; allowed: --once"),
        (["--redis-url", redis_server.url, "--json"], 2, "as_json (--json): allowed: with --once"),
        (["--redis-url", "redis://127.0.0.1:1", "--once"], 3, "redis_url redis://127.0.0.1:1: "),
    ):
        assert main(["top", *flags]) == code
        error = capsys.readouterr().err
        assert error.startswith(f"orcastream top: {complaint}")
        assert error.count("\n") == 1


def test_an_interrupted_sample_is_no_success(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_with_redis", interrupted)
    assert main(["top", "--once", "--redis-url", redis_server.url]) == 130


@pytest.fixture
def busy(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a worker that answers two long requests, for longer than a test takes."""
    worker = WorkerProcess(redis_server.url, tmp_path / "worker.log", patch=partial(pace, 0.05))
    try:
        worker.wait_serving()
        with Client(redis_server.url, MODEL) as client:
            replies = [client.generate([5, 6], max_tokens=4000, ignore_eos=True) for _ in range(2)]
            for reply in replies:
                next(reply)
            yield redis_server
    finally:
        worker.kill()


def test_rates_match_the_work(busy: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    while True:
        told = json.loads(once(busy, capsys, "--json", model=MODEL))
        [worker] = told["workers"]
        if worker["rates"]["output_tokens"]:
            break
    assert worker["rates"]["output_tokens"] >= worker["rates"]["iterations"] > 0
    assert told["rates"]["output_tokens"] == worker["rates"]["output_tokens"]
    assert (worker["state"], worker["running"], worker["holds"]) == ("serving", 2, 2)


class Tmux:
    """A session on its own tmux server, which ends with the test."""

    def __init__(self, name: str, command: str) -> None:
        self._name = name
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "140", "-y", "40", command)

    def run(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def shows(self, *parts: str) -> str:
        """Wait until the screen holds all parts."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            screen = self.run("capture-pane", "-p")
            if all(part in screen for part in parts):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"the screen does not show {parts}:\n{screen}")

    def ended(self) -> bool:
        """Whether its command has ended, which ends the only session."""
        give_up = time.monotonic() + PATIENCE_S
        while self.run("list-sessions") and time.monotonic() < give_up:
            time.sleep(0.1)
        return not self.run("list-sessions")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_top_updates_live_in_a_terminal(own_redis: Any, tmp_path: Path) -> None:
    server: RedisServer = own_redis(aof="always")
    asyncio.run(_fill(server))
    flags = f"--redis-url {server.url} --served-model-name demo --interval-s 0.2"
    variables = f"PYTHONPATH={ROOT} TERM=screen"
    code = tmp_path / "code"
    top = f"env {variables} {sys.executable} -P -m orcastream.cli.main top {flags}; echo $? > {code}"
    tmux = Tmux(f"orcastream-{os.getpid()}", top)
    try:
        tmux.shows("orcastream demo", "there", "draining", "3/8")
        asyncio.run(_say(server, running=7))
        tmux.shows("7/8")
        server.kill()
        tmux.shows("Redis does not answer", "7/8")
        server.start()
        asyncio.run(_say(server, running=5))
        tmux.shows("5/8")
        tmux.run("send-keys", "C-c")
        assert tmux.ended()
        assert code.read_text() == "0\n"
    finally:
        tmux.run("kill-server")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_top_restores_the_terminal(redis_server: RedisServer, number: signal.Signals) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-P", "-m", "orcastream.cli.main", "top", "--redis-url", redis_server.url]
        os.execve(command[0], command, {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"})
    shown = b""
    try:
        while b"orcastream orca-demo" not in shown:
            shown += os.read(terminal, 4096)
        os.kill(pid, number)
        with contextlib.suppress(OSError):  # EIO once the terminal has no process
            while more := os.read(terminal, 4096):
                shown += more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
    assert shown.count(ENTER_SCREEN) == shown.count(LEAVE_SCREEN) == 1
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    assert code == 0


async def _say(server: RedisServer, **info: int) -> None:
    link = await Link.open(server.url)
    await Presence(link, KEYS, "there").beat(info, ttl_ms=60_000)
    await link.close()
