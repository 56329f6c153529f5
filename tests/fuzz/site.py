"""The fuzzed processes: a Redis server, a gateway and a worker with the demo model."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from orcastream.schemas.keys import CLASSES, GROUP, Keys
from tests.chaos.resources import look
from tests.fuzz.loop_watch import LoopWatch, watch
from tests.path.gateway_process import GatewayProcess
from tests.ports import free_port
from tests.redis_server import RedisServer, embedded_binary, system_binary
from tests.worker.worker_process import MODEL, WorkerProcess

RETENTION_S: Final = 60
"""Replies are soon forgotten: what they take of Redis's memory is not what is looked at."""
KV_BYTES: Final = 16 * 2**20
"""So little that all of it has been in use, and counts as the process's memory, before anything is compared."""


class Site:
    """The running processes, started on construction; `close` ends all of them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        binary = system_binary() or embedded_binary()
        assert binary is not None, "no redis-server found on this machine"
        self.keys = Keys(MODEL)
        self.server = RedisServer(binary, folder / "redis")
        self.server.start()
        shared: dict[str, Any] = {"retention_s": RETENTION_S, "redis_url": self.server.url}
        self.worker_port = free_port()
        self.loop_watch = LoopWatch(folder / "loop")
        self.worker = WorkerProcess(
            self.server.url,
            folder / "worker.log",
            patch=partial(watch, self.loop_watch.path),
            **{**shared, "admin_port": self.worker_port, "lease_ms": 5000, "kv_cache_memory": KV_BYTES},
        )
        self.gateway = GatewayProcess(
            self.server.url, folder / "gateway.log", disconnect_grace_s=0.2, **{**shared, "lease_ms": 5000}
        )
        self.redis = redis.Redis.from_url(self.server.url, socket_timeout=30)
        self.worker_name = self.worker.wait_serving()
        self.gateway.wait_ready()

    @property
    def processes(self) -> dict[str, GatewayProcess | WorkerProcess]:
        """The processes that must neither end nor be held, by name."""
        return {"gateway": self.gateway, "worker": self.worker}

    @property
    def ports(self) -> dict[str, int]:
        """The port on which each reports its health."""
        return {"gateway": self.gateway.port, "worker": self.worker_port}

    def memory_bytes(self) -> dict[str, int]:
        """Return the private memory that each process holds now."""
        samples = {name: look(name, process.pid) for name, process in self.processes.items()}
        return {name: sample.memory_bytes for name, sample in samples.items() if sample is not None}

    def left(self) -> int:
        """Return the entries that wait or run, or are pending although deleted."""
        pipeline: Any = self.redis.pipeline(transaction=False)
        for name in CLASSES:
            pipeline.xlen(self.keys.requests(name)).xpending(self.keys.requests(name), GROUP)
        answers = pipeline.execute()
        return sum(answers[0::2]) + sum(pending["pending"] for pending in answers[1::2])

    def tail(self, name: str) -> str:
        """Return the end of a process's output."""
        return self.processes[name].log[-3000:]

    def close(self) -> None:
        """Kill the remaining processes."""
        for process in self.processes.values():
            process.kill()
        self.redis.close()
        self.loop_watch.close()
        self.server.kill()
        self._folder.cleanup()
