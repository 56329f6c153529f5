"""The processes under attack: gateways and workers, each restarted after its end."""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.chaos import adapter
from tests.chaos.cluster_service import ClusterService
from tests.chaos.questions import DEMO
from tests.chaos.redis_service import RedisService
from tests.chaos.sentinel_service import SentinelService
from tests.ports import free_port
from tests.service_process import ServiceProcess

LEASE_MS = 2000
_SHARED = {"lease_ms": LEASE_MS, "retention_s": 7200}
_WORKER = {"torch_threads": 1, "dtype": "float32", "drain_grace_s": 1, "stall_timeout_s": 60}
_WORKER |= {"max_batch_size": 16, "kv_cache_memory": 48 * 2**20}
_GATEWAY = {"shutdown_grace_s": 1, "loss_check_s": 2}
_EXIT_S = 120.0

_KINDS: dict[str, type[RedisService]] = {"sentinel": SentinelService, "cluster": ClusterService}

Patch = Callable[[], None]


@dataclass
class Service:
    """One service: a gateway or a worker, running or between two runs."""

    name: str
    port: int
    """HTTP port: a gateway's own, a worker's admin port."""
    launch: Callable[[], ServiceProcess]
    process: ServiceProcess | None = None
    disturbed: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the fault that is at work on it."""

    @property
    def url(self) -> str:
        """The URL of its HTTP port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return self.process.pid if self.process is not None and self.process.running else None

    def start(self) -> None:
        """Start a new process."""
        self.process = self.launch()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self.process is not None:
            self.process.signal(number)

    async def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            await self.ended()

    async def ended(self) -> int | None:
        """Wait for the process to end; return its exit status, or None if it does not end."""
        give_up = time.monotonic() + _EXIT_S
        while self.process is not None and self.process.running:
            if time.monotonic() > give_up:
                return None
            await asyncio.sleep(0.02)
        return None if self.process is None else self.process.wait(1)

    async def answers(self, path: str, timeout_s: float = 1.0) -> bool:
        """Whether a GET is answered with 200 in time."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=timeout_s) as client:
                return (await client.get(self.url + path)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def wait_ready(self) -> bool:
        """Wait until it serves; return False if the process ends instead."""
        while not await self.answers("/health/ready"):
            if self.pid is None:
                return False
            await asyncio.sleep(0.1)
        return True


class Site:
    """Redis of the kind that `mode` names, two gateways, three workers. The workers apply `patch` at start; `grace_s`
    is how long a lost client may be away before its request is canceled.
    """

    def __init__(self, mode: str, directory: Path, *, patch: Patch, grace_s: float) -> None:
        self.directory = directory
        self._adapter = directory / "adapter"
        adapter.save_adapter(DEMO / "model", self._adapter)
        self.redis = _KINDS.get(mode, RedisService)(mode, directory / "redis")
        self.gateways = [self._gateway(f"gateway-{number}", grace_s) for number in (1, 2)]
        self.workers = [self._worker(f"worker-{number}", patch) for number in (1, 2, 3)]
        self.intact_worker = self._worker("worker-0", None)
        """Computes the undisturbed answers, before the others start."""
        self.died: list[str] = []
        """Processes that ended although nobody ended them."""

    @property
    def services(self) -> list[Service]:
        """Gateways and workers."""
        return [*self.gateways, *self.workers]

    async def start(self) -> None:
        """Start the services, with Redis already running. Return when they serve."""
        for service in self.services:
            service.start()
        await asyncio.gather(*(self._serving(service) for service in self.services))

    async def revive(self, service: Service) -> None:
        """Restart a service and wait until it serves."""
        service.start()
        while not await service.wait_ready():
            self.note_death(service, f"ended by itself with status {await service.ended()}")
            service.start()

    async def keep(self) -> None:
        """Restart services that have ended on their own, forever; record these in `died`."""
        while True:
            for service in self.services:
                if service.pid is None and not service.disturbed.locked():
                    self.note_death(service, f"ended by itself with status {await service.ended()}")
                    service.start()
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """End everything at once."""
        for service in (*self.services, self.intact_worker):
            if service.pid is not None:
                service.signal(signal.SIGCONT)
                await service.kill()
        await self.redis.stop()

    async def _serving(self, service: Service) -> None:
        if not await service.wait_ready():
            raise RuntimeError(f"{service.name} does not start: see {self._log(service.name)}")

    def note_death(self, service: Service, how: str) -> None:
        """Record that a service ended unexpectedly, with the worst line of its log."""
        lines = self._log(service.name).read_text(encoding="utf-8", errors="replace").splitlines()
        worst = next((line for line in reversed(lines) if " critical " in line), "nothing critical in its log")
        self.died.append(f"{service.name} {how}: {worst}")

    @property
    def _shared(self) -> dict[str, Any]:
        return {**_SHARED, "redis_url": self.redis.url, "queue_lanes": self.redis.queue.lanes}

    def _gateway(self, name: str, grace_s: float) -> Service:
        port = free_port()
        own: dict[str, Any] = {"port": port, "disconnect_grace_s": grace_s}
        settings = {**self._shared, **_GATEWAY, **own}
        return Service(name, port, lambda: ServiceProcess("gateway", self._log(name), **settings))

    def _worker(self, name: str, patch: Patch | None) -> Service:
        port = free_port()
        settings = {**self._shared, **_WORKER, "admin_port": port, "adapters": f"{adapter.NAME}={self._adapter}"}
        return Service(name, port, lambda: ServiceProcess("worker", self._log(name), patch=patch, **settings))

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"
