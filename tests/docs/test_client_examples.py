"""The examples that ask through a client, as they are written: real gateways, and connections cut everywhere."""

import asyncio
import json
import os
import shutil
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.client.cutting_proxy import CuttingProxy
from tests.docs.producers import EXAMPLES
from tests.gateway.conftest import MODEL, TEXT, Stage, model_folder, redis_binary, stage, tokenizer
from tests.gateway.scripted_worker import Answer, Gate

__all__ = ["model_folder", "redis_binary", "stage", "tokenizer"]

ROOT = Path(__file__).parents[2]
NODE = pytest.param("node", marks=pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"))


async def run(example: str, tmp_path: Path, *urls: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error of the example of that language."""
    if example == "node":
        command = [
            "node",
            str(EXAMPLES / "stream.mjs"),
            "--model",
            MODEL,
            "--url",
            ",".join(urls),
            "--patience",
            "20",
            "x",
        ]
    else:
        program = (EXAMPLES / "client_sync.py").read_text(encoding="utf-8").replace('"orca-demo"', f'"{MODEL}"')
        (tmp_path / "client_sync.py").write_text(program, encoding="utf-8")
        command = [sys.executable, str(tmp_path / "client_sync.py"), *urls, "x"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("example", [NODE, "python"])
async def test_each_part_once_over_many_connections(stage: Stage, tmp_path: Path, example: str) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)]))
    served = await stage.gateway(disconnect_grace_s=60)
    async with CuttingProxy(int(served.url.rpartition(":")[2]), count(700, 53)) as proxy:
        status, out, err = await run(example, tmp_path, "http://127.0.0.1:1", proxy.url)
    assert (status, out.rstrip("\n")) == (0, TEXT), err
    assert proxy.num_cut > 3


@pytest.mark.parametrize("example", [NODE, "python"])
async def test_an_error_is_told(stage: Stage, tmp_path: Path, example: str) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"sk-a": "alpha"})
    status, _, err = await run(example, tmp_path, served.url)
    assert status == 1
    assert "invalid_api_key" in err


async def test_a_gateway_stops_and_node_goes_on_elsewhere(stage: Stage, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    gateways = [await stage.gateway(disconnect_grace_s=60) for _ in range(2)]
    running = asyncio.create_task(run("node", tmp_path, *(served.url for served in gateways)))
    begun = asyncio.create_task(gate.reached(4))
    await asyncio.wait((running, begun), return_when=asyncio.FIRST_COMPLETED)
    begun.cancel()
    gateways[0].gateway.begin_stop()
    await gate.open()
    assert await running == (0, f"{TEXT}\n", "")


async def test_many_at_once_straight_over_redis(stage: Stage, tmp_path: Path) -> None:
    await stage.worker(lambda request: Answer([list(request.payload.prompt) * 2]))
    program = (EXAMPLES / "client_async.py").read_text(encoding="utf-8").replace('"orca-demo"', f'"{MODEL}"')
    (tmp_path / "client_async.py").write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(tmp_path / "client_async.py"),
        *(stage.url, "[5, 6]", "[7]"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert [json.loads(line) for line in out.decode().splitlines()] == [[5, 6, 5, 6], [7, 7]]
