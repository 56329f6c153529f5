"""The gateway as a process: it starts, serves, and stops cleanly on SIGTERM."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from orcastream.gateway.service import Gateway
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.service_process import catches

PROGRAM = """
import sys
from orcastream.gateway.main import run
from orcastream.gateway.settings import GatewaySettings
run(GatewaySettings(_env_file=None, redis_url=sys.argv[1], model=sys.argv[2], served_model_name="tiny",
    port=int(sys.argv[3]), shutdown_grace_s=0, redis_patience_s=600))
"""


def num_sockets(pid: int) -> int:
    """Return the number of sockets that a process has open."""
    names = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
    return sum(name.startswith("socket:") for name in names)


_IGNORED = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup, which every process here then inherits


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.skipif(_IGNORED, reason="SIGHUP is ignored"))],
)
async def test_a_signal_ends_streams_resumably_and_the_process_cleanly(
    stage: Stage, model_folder: str, number: signal.Signals
) -> None:
    gate = Gate(6)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stage.url, model_folder, str(port), stderr=asyncio.subprocess.PIPE
    )
    other = await stage.gateway()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:

        async def ready() -> bool:
            assert process.returncode is None
            try:
                return (await http.get("/health/ready")).status_code == 200
            except httpx.ConnectError:
                return False

        await eventually(ready)
        body = {"model": MODEL, "prompt": "x", "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            reading = read(response)
            events = [await anext(reading)]
            process.send_signal(number)
            events += [event async for event in reading]
            request_id = response.headers["x-request-id"]
    assert events[-1].error["code"] == "gateway_stopping"
    _, stderr = await process.communicate()
    assert process.returncode == 0
    said = [line.split()[1:3] for line in stderr.decode().splitlines()]
    assert said == [["info", "serving"], ["info", "ready"], ["info", "stopping"], ["info", "stopped"]]
    await gate.open()
    headers = {"Last-Event-ID": events[-1].last_id} if events[-1].last_id else {}
    async with other.http().stream("GET", f"/v1/requests/{request_id}/events", headers=headers) as response:
        rest = [event async for event in read(response)]
    assert joined(events) + joined(rest) == TEXT


async def test_clients_that_wait_for_redis_are_told_of_the_stop(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage], model_folder: str
) -> None:
    server = own_redis()
    stage = stage_of(server.url)
    await stage.worker()
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stage.url, model_folder, str(port))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:

        async def serves() -> bool:
            try:
                return (await http.post("/v1/completions", json={"model": MODEL, "prompt": "x"})).is_success
            except httpx.ConnectError:
                return False

        await eventually(serves)
        await asyncio.to_thread(server.kill)

        async def misses_redis() -> bool:
            return (await http.get("/health/ready")).status_code == 503

        async def has_all() -> bool:
            return num_sockets(process.pid) >= known + 3  # the fourth may use the existing connection

        await eventually(misses_redis)
        known = num_sockets(process.pid)
        posts = [http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}) for _ in range(3)]
        asking = asyncio.gather(*posts, http.get("/v1/requests/cmpl-1/events"))
        await eventually(has_all)
        for _ in range(3):
            assert (await http.get("/health/live")).is_success  # earlier connections have been accepted
        process.send_signal(signal.SIGTERM)
        told = [(answer.status_code, answer.json()["error"]["code"]) for answer in await asking]
    assert told == [(503, "gateway_stopping")] * 4
    assert await process.wait() == 0


async def test_a_signal_during_startup_is_not_lost(stage: Stage, model_folder: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stage.url, model_folder, str(free_port()), stderr=asyncio.subprocess.PIPE
    )

    async def catches_sigterm() -> bool:
        assert process.returncode is None
        return catches(process.pid, signal.SIGTERM)

    await eventually(catches_sigterm)
    process.send_signal(signal.SIGTERM)
    _, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    assert "Traceback" not in stderr.decode()


def test_missing_settings_are_named(stage_settings: Stage) -> None:
    with pytest.raises(ValueError, match="redis_url"):
        Gateway(stage_settings.settings(redis_url=None))
    with pytest.raises(ValueError, match="model"):
        Gateway(stage_settings.settings(model=""))


@pytest.fixture
def stage_settings(model_folder: str, tokenizer: object) -> Stage:
    return Stage("redis://127.0.0.1:1", model_folder, tokenizer)  # type: ignore[arg-type]
