"""The startup of `orcastream worker` until it serves, and its memory then."""

import asyncio
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from orcastream.cli.environment import import_path
from orcastream.cli.ports import claimable_port
from orcastream.cli.process import Process, Program

_HOST = "127.0.0.1"
_POLL_S = 0.02
_PATIENCE_S = 300.0
_MIB = 1 << 20
_KV_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Starting:
    """The worker was ready `ready_s` after its spawn.

    Memory in MiB, before any write to the KV pool: resident when ready, and the peak before; `weights_mib` is the size
    of the checkpoint's files.
    """

    model: str
    ready_s: float
    rss_mib: float
    peak_mib: float
    weights_mib: float

    @property
    def beside_weights_mib(self) -> float:
        """Resident memory without weights and KV pool."""
        return self.rss_mib - self.weights_mib


async def starting(redis_url: str, model: str) -> Starting:
    """Start a worker, and stop it as soon as it is ready."""
    port = claimable_port(_HOST, 0, "port")
    values = {
        "redis_url": redis_url,
        "model": model,
        "admin_port": port,
        "admin_host": _HOST,
        "log_level": "warning",
        "kv_cache_memory": _KV_CACHE_BYTES,
    }
    variables = {f"ORCASTREAM_{name.upper()}": str(value) for name, value in values.items()}
    command = (sys.executable, "-m", "orcastream.cli.main", "worker")
    lines: list[str] = []
    begun_s = time.monotonic()
    process = await Process.spawn(Program("worker", command, variables | import_path()), lines.append)
    try:
        await _ready(f"http://{_HOST}:{port}/health/ready", begun_s + _PATIENCE_S, lines)
        ready_s = time.monotonic() - begun_s
        status = _read_status(process.pid)
    finally:
        process.terminate()
        await process.wait()
    return Starting(model, ready_s, _mib(status, "VmRSS"), _mib(status, "VmHWM"), _weights_mib(model))


def _read_status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text(encoding="ascii")


def _weights_mib(model: str) -> float:
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) / _MIB


async def _ready(url: str, until_s: float, lines: list[str]) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        while time.monotonic() < until_s:
            try:
                if (await http.get(url)).is_success:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_POLL_S)
    raise RuntimeError(f"the worker did not become ready: {lines[-3:]}")


def _mib(status: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")
