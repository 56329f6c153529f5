"""`orcastream up` with real processes: serves, restarts the dead, stops cleanly, leaves nothing, loses nothing."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from orcastream.cli.data_lock import DataLock
from orcastream.cli.embedded_redis import EmbeddedRedis
from orcastream.cli.supervisor import Supervisor
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Event, Started, Terminal, decode_event
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, Payload
from tests.cli.processes import ProcessWatch  # fmt: skip
from tests.cli.processes import Terminal as Console
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.server

KEYS = Keys("orca-demo")
NAMES = ("redis", "gateway", "worker-1", "worker-2")


class Up:
    """A running `orcastream up`, with its output about its processes."""

    def __init__(self, console: Console, watch: Callable[[int], ProcessWatch]) -> None:
        self.console = console
        self._watch = watch
        self.pids: dict[str, int] = {}
        self.redis_url = ""
        self.url = ""

    def wait_until_ready(self) -> None:
        """Read the lines up to `ready`."""
        self.url = self.console.wait_for(r"ready: (http\S+)/v1")[1]
        for name, pid in re.findall(r"^(\S+) *\| pid (\d+)$", self.console.text, re.MULTILINE):
            self.pids[name] = int(pid)
        shown = re.search(r"redis-cli -h 127\.0\.0\.1 -p (\d+)", self.console.text)
        self.redis_url = f"redis://127.0.0.1:{shown[1]}" if shown else ""
        self.watches = {name: self._watch(pid) for name, pid in self.pids.items()}

    def ask(self, **parameters: object) -> dict[str, object]:
        """A completion through the gateway."""
        body = {"model": "orca-demo", "prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True, **parameters}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def nothing_is_left(self) -> bool:
        """Return whether every process that it reported is gone."""
        return all(watch.gone_within(PATIENCE_S) for watch in self.watches.values())


@pytest.fixture
def start_up(run: Callable[..., Console], watch: Callable[[int], ProcessWatch], tmp_path: Path) -> Callable[..., Up]:
    """Starts `orcastream up` on a free port with its own data directory; waits until it is ready."""

    def start(*flags: str) -> Up:
        up = Up(up_console(run, tmp_path, *flags), watch)
        up.wait_until_ready()
        return up

    return start


def up_console(run: Callable[..., Console], data_dir: Path, *flags: str) -> Console:
    (data_dir / "elsewhere").mkdir(exist_ok=True)
    common = ("-m", "orcastream.cli.main", "up", "--port", "0", "--data-dir", str(data_dir / "data"))
    return run(*common, *flags, cwd=data_dir / "elsewhere")


def test_dead_processes_are_restarted_and_a_second_ctrl_c_ends_everything(start_up: Callable[..., Up]) -> None:
    up = start_up("--workers", "2", "--drain-grace-s", "600", "--lease-ms", "1000")
    assert tuple(up.pids) == NAMES
    assert up.ask()["choices"]

    for name in ("redis", "worker-1", "gateway"):
        up.console.kill(up.pids[name])
        up.console.wait_for(rf"^{name} +\| died \(killed by SIGKILL\), starts again in 0\.\d+ s$")
        assert int(up.console.wait_for(rf"^{name} +\| pid (\d+)$")[1]) != up.pids[name]
    wait_until(lambda: httpx.get(f"{up.url}/health/ready", timeout=PATIENCE_S))
    assert up.ask()["choices"]

    with redis.Redis.from_url(up.redis_url) as client:
        post(client, "endless", max_tokens=4000)
        next(follow(client, "endless"))
    up.console.signal(signal.SIGINT)
    up.console.wait_for("Ctrl-C again kills everything at once")
    with pytest.raises(subprocess.TimeoutExpired):
        up.console.wait(1)  # a signal at once would be part of the first
    up.console.signal(signal.SIGINT)
    assert up.console.wait() == 130
    assert up.nothing_is_left()


def test_as_json_every_line_is_an_object_that_names_its_process(run: Callable[..., Console], tmp_path: Path) -> None:
    console = up_console(run, tmp_path, "--workers", "1", "--log-form", "json", "--log-level", "debug")
    url = console.wait_for(r"ready: (http[^\s\"]+)/v1")[1]
    body = {"model": "orca-demo", "prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}
    request_id = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S).json()["id"]
    console.wait_for(r'"request ended".*' + re.escape(request_id))
    console.process.send_signal(signal.SIGINT)
    assert console.wait() == 0
    told = [json.loads(line) for line in console.text.splitlines()]
    assert {line["process"] for line in told} == {"up", "redis", "gateway", "worker-1"}
    about = {(line["process"], line["message"]) for line in told if line.get("request") == request_id}
    assert about >= {("gateway", "accepted"), ("worker-1", "request ended")}


def test_queued_requests_are_served_after_a_restart(start_up: Callable[..., Up]) -> None:
    one_by_one = ("--workers", "1", "--max-batch-size", "1", "--max-claims", "1")
    flags = (*one_by_one, "--drain-grace-s", "0", "--lease-ms", "1000")
    first = start_up(*flags)
    wanted = {"long": 1500, "waiting-1": 5, "waiting-2": 5}
    with redis.Redis.from_url(first.redis_url) as client:
        for request_id, num_tokens in wanted.items():
            post(client, request_id, max_tokens=num_tokens)
        events = follow(client, "long")
        assert isinstance(next(events), Started)
        next(events)
        stop(first, signal.SIGINT)

    second = start_up(*flags)
    with redis.Redis.from_url(second.redis_url) as client:
        for request_id, num_tokens in wanted.items():
            events_of_it = list(follow(client, request_id))
            assert positions(events_of_it) == list(range(num_tokens))
            attempts = sum(isinstance(event, Started) for event in events_of_it)
            assert attempts == (2 if request_id == "long" else 1)
    stop(second, signal.SIGTERM)


def stop(up: Up, number: signal.Signals) -> None:
    """An orderly stop: everything ends, Redis last."""
    up.console.signal(number)
    assert up.console.wait() == 0
    assert up.nothing_is_left()
    stopped = re.findall(r"^(\S+) *\| stopped \(exit code 0\)$", up.console.text, re.MULTILINE)
    assert set(stopped) == set(up.pids)
    assert stopped[-1] == "redis"


async def test_up_uses_a_given_server_and_a_killed_up_leaves_nothing(
    start_up: Callable[..., Up], tmp_path: Path
) -> None:
    given = EmbeddedRedis(Supervisor(lambda name, line: None), tmp_path / "own")
    await given.start()
    try:
        up = await asyncio.to_thread(start_up, "--workers", "1", "--redis-url", given.url)
        assert set(up.pids) == {"gateway", "worker-1"}
        up.console.signal(signal.SIGKILL)
        assert up.nothing_is_left()
    finally:
        await given.stop()


@pytest.mark.parametrize("setting", ["port", "admin_port"])
def test_a_port_in_use_is_reported_before_anything_starts(
    run: Callable[..., Console], tmp_path: Path, setting: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = up_console(run, tmp_path, f"--{setting.replace('_', '-')}", str(port))
        assert up.wait() == 2
        assert f"orcastream up: {setting}: port {port} on 127.0.0.1 is in use" in up.text
        assert "pid" not in up.text
    assert not (tmp_path / "data").exists()


async def test_a_data_directory_in_use_is_reported(run: Callable[..., Console], tmp_path: Path) -> None:
    lock = DataLock(tmp_path / "data")
    await lock.acquire()
    up = up_console(run, tmp_path)
    assert up.wait() == 2
    assert f"orcastream up: data_dir: {tmp_path / 'data'} is in use by another orcastream" in up.text
    lock.release()


def test_an_unreachable_redis_is_reported(run: Callable[..., Console], tmp_path: Path) -> None:
    up = up_console(run, tmp_path, "--redis-url", "redis://user:word@127.0.0.1:1/0")
    assert up.wait() == 2
    assert "orcastream up: redis_url: no Redis server answers there" in up.text
    assert "word" not in up.text


def test_settings_of_the_embedded_server_are_ignored_with_a_warning(
    run: Callable[..., Console], tmp_path: Path
) -> None:
    up = up_console(run, tmp_path, "--redis-url", "redis://127.0.0.1:1/0", "--redis-port", "6399")
    assert up.wait() == 2
    reason = "ignored, because redis_url is set and no embedded server runs"
    for name in ("data_dir", "redis_port"):
        assert f"orcastream up: {name}: {reason}" in up.text


def test_a_model_that_cannot_be_served_ends_up(run: Callable[..., Console], tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "no-such-architecture"}')
    up = up_console(run, tmp_path, "--workers", "1", "--model", str(tmp_path / "odd"))
    assert up.wait() == 2
    assert re.search(r"^orcastream up: \S+ cannot run: exit code 2", up.text, re.MULTILINE)
    assert "Traceback" not in up.text


def positions(events: Iterable[Event]) -> list[int]:
    """Return the positions of all tokens in these events, in order."""
    runs = [run for event in events for run in getattr(event, "runs", ())]
    return [run.position + offset for run in runs for offset in range(len(run.tokens))]


def post(client: Any, request_id: str, *, max_tokens: int) -> None:
    """Put a request on the queue as any producer would."""
    payload = Payload(prompt=(1, 2, 3), max_tokens=max_tokens, ignore_eos=True, temperature=0)
    request = GenerationRequest(request_id, payload, int(time.time() * 1000) + 600_000, form=Form.JSON)
    client.xadd(KEYS.requests("normal"), request.fields())


def follow(client: Any, request_id: str, timeout: float = PATIENCE_S) -> Iterator[Event]:
    """Yield the events of a reply log as they arrive, up to the last one."""
    last: bytes | str = "0-0"
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for _, entries in client.xread({KEYS.reply(request_id): last}, block=1000) or ():
            for entry_id, fields in entries:
                last = entry_id
                event = decode_event(fields)
                yield event
                if isinstance(event, Terminal):
                    return
    raise AssertionError(f"no end of {request_id} within {timeout} s")


def wait_until(answer: Callable[[], httpx.Response], timeout: float = PATIENCE_S) -> None:
    """Poll until the response is 200: a restarted gateway does not announce when it listens."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if answer().status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"not ready within {timeout} s")
