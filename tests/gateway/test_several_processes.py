"""`orcastream gateway --workers N`: processes on one port, distinguishable, kept running, drained together."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import Seen, read
from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
BODY = {"model": MODEL, "prompt": "x"}


class Processes:
    """Two gateway processes: `shared` reaches either, `own` a particular one."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, port: int, first_own_port: int) -> None:
        self.process = process
        self._log = log
        self.shared = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        urls = [f"http://127.0.0.1:{first_own_port + number}" for number in (0, 1)]
        self.own = [httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) for url in urls]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def pids(self, number: int) -> list[int]:
        """The pids that one process has had so far, newest last."""
        return [int(pid) for pid in re.findall(rf"gateway-{number + 1}: pid (\d+)", self.log)]

    async def ready(self, number: int) -> None:
        async def answers() -> bool:
            assert self.process.returncode is None, self.log
            try:
                return (await self.own[number].get("/health/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(answers)


@asynccontextmanager
async def two_processes(stage: Stage, model_folder: str, log: Path, *flags: str) -> AsyncIterator[Processes]:
    port, own = free_port(), two_ports()
    values = {"--redis-url": stage.url, "--model": model_folder, "--served-model-name": MODEL, "--workers": "2"}
    values |= {"--port": str(port), "--process-port": str(own), "--shutdown-grace-s": "0"}
    command = (
        "-P",
        "-m",
        "orcastream.cli.main",
        "gateway",
        *(part for item in values.items() for part in item),
        *flags,
    )
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=stderr
        )
    processes = Processes(process, log, port, own)
    try:
        for number in (0, 1):
            await processes.ready(number)
        yield processes
    finally:
        for client in (processes.shared, *processes.own):
            await client.aclose()
        if process.returncode is None:
            process.terminate()
            await process.wait()


def two_ports() -> int:
    """Return the first of two consecutive free ports."""
    first, second = free_port(), free_port()
    while second != first + 1:
        first, second = second, free_port()
    return first


async def test_processes_are_distinguishable_and_a_repeated_key_is_one_request(
    stage: Stage, model_folder: str, tmp_path: Path
) -> None:
    worker = await stage.worker()
    async with two_processes(stage, model_folder, tmp_path / "log", "--metrics") as processes:
        keyed = {"Idempotency-Key": "mine"}
        answers = [await client.post("/v1/completions", json=BODY, headers=keyed) for client in processes.own]
        assert [answer.json()["choices"][0]["text"] for answer in answers] == [TEXT, TEXT]
        assert len({answer.headers["x-request-id"] for answer in answers}) == 1
        assert len(worker.requests) == 1
        assert (await processes.shared.post("/v1/completions", json=BODY)).status_code == 200
        pages = [(await client.get("/metrics")).text for client in processes.own]
        names = [re.findall(r'target_info{.*service_instance_id="(.*?)"', page) for page in pages]
        assert [len(found) for found in names] == [1, 1]
        assert names[0] != names[1]
        refused = await processes.shared.get("/metrics")
        assert refused.status_code == 404
        assert "are at /metrics on port" in refused.json()["error"]["message"]


async def test_a_killed_process_restarts_while_the_other_serves(
    stage: Stage, model_folder: str, tmp_path: Path
) -> None:
    await stage.worker()
    async with two_processes(stage, model_folder, tmp_path / "log") as processes:
        os.kill(processes.pids(0)[0], signal.SIGKILL)

        async def died() -> bool:
            return "gateway-1: died" in processes.log

        await eventually(died)
        port = processes.shared.base_url
        for _ in range(5):
            async with httpx.AsyncClient(base_url=port, timeout=PATIENCE_S) as fresh:
                assert (await fresh.post("/v1/completions", json=BODY)).status_code == 200
        await processes.ready(0)
        assert len(processes.pids(0)) == 2
        assert len(processes.pids(1)) == 1


async def test_sigterm_drains_all_processes(stage: Stage, model_folder: str, tmp_path: Path) -> None:
    ids = stage.tokenizer.encode(TEXT)
    await stage.worker(lambda _: Answer([ids], gate=Gate(3)))
    async with two_processes(stage, model_folder, tmp_path / "log") as processes:
        begun: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
        body = {**BODY, "stream": True}
        follows = [_follow(client, body, one) for client, one in zip(processes.own, begun, strict=True)]
        reading = asyncio.gather(*follows)
        for one in begun:
            await one.wait()
        pids = [processes.pids(number)[0] for number in (0, 1)]
        processes.process.send_signal(signal.SIGTERM)
        ended = await reading
        assert [events[-1].error["code"] for events in ended] == ["gateway_stopping", "gateway_stopping"]
        assert await processes.process.wait() == 0, processes.log
        assert processes.log.count(" stopped gateway=") == 2
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_settings_that_no_process_can_run_with_end_all(stage: Stage, tmp_path: Path) -> None:
    """One error message, and the exit code for unusable settings."""
    (tmp_path / "config.json").write_text("{}")
    command = (
        "-P",
        "-m",
        "orcastream.cli.main",
        "gateway",
        "--redis-url",
        stage.url,
        "--model",
        str(tmp_path),
        "--workers",
        "2",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--port", str(free_port()), stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert "cannot run: exit code 2" in stderr.decode()


async def _follow(client: httpx.AsyncClient, body: dict[str, object], begun: asyncio.Event) -> list[Seen]:
    events = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for event in read(response):
            events.append(event)
            begun.set()
    return events
