"""A small cluster on this machine: Redis, a gateway, and any number of worker processes."""

import asyncio
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from orcastream.bench.cpu_time import cpu_s
from orcastream.bench.serve.gateway import served_model
from orcastream.broker.link import Link
from orcastream.broker.presence import list_workers
from orcastream.broker.queue import RequestQueue
from orcastream.cli.embedded_redis import EmbeddedRedis
from orcastream.cli.environment import import_path
from orcastream.cli.ports import claimable_port
from orcastream.cli.process import Program
from orcastream.cli.supervisor import GaveUp, Supervisor
from orcastream.schemas.keys import Keys

_STOP_MARGIN_S = 30.0
_PATIENCE_S = 300.0
_LAST_LINES = 10
_REST_S = 1.0
_RESTS_BELOW = 0.2
"""Idle processes together use less than this share of a core."""
_MOST_RESTS = 60
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Headcount:
    """Numbers of worker processes: serving, loading the model, and still running after a stop signal."""

    ready: int
    starting: int
    draining: int


class Site:
    """A site whose processes end with ours. `worker` and `gateway` are settings by name, as in ORCASTREAM_ variables.

    `environment` contains additional variables for both.
    """

    def __init__(
        self,
        data_dir: Path,
        model: str,
        report: Callable[[str, str], None],
        *,
        worker: Mapping[str, object],
        gateway: Mapping[str, object],
        drain_grace_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._supervisor = Supervisor(report)
        self._redis = EmbeddedRedis(self._supervisor, data_dir)
        self._keys = Keys(model)
        self._worker = {"drain_grace_s": drain_grace_s, "torch_threads": 1, **worker}
        self._gateway = gateway
        self._environment = dict(environment or {})
        self._drain_s = drain_grace_s + _STOP_MARGIN_S
        self._workers: list[str] = []
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._started = 0
        self._scaling = asyncio.Lock()
        self._link: Link | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return f"http://{_HOST}:{self.port}"

    @property
    def redis_url(self) -> str:
        """The URL of its Redis."""
        return self._redis.url

    async def start(self) -> None:
        """Start Redis and the gateway, but no worker yet."""
        await self._redis.start()
        self._link = await Link.open(self._redis.url, name="bench-site")
        self.port = claimable_port(_HOST, 0, "port")
        await self._supervisor.start(self._program("gateway", "gateway", {**self._gateway, "port": self.port}))

    async def scale_to(self, replicas: int) -> None:
        """Start missing workers, or drain the newest ones, without waiting for either."""
        async with self._scaling:
            while len(self._workers) < replicas:
                self._started += 1
                name = f"worker-{self._started}"
                await self._supervisor.start(self._program(name, "worker", self._worker))
                self._workers.append(name)
            while len(self._workers) > replicas:
                self._drain(self._workers.pop())

    async def ready(self) -> str:
        """Return the served name once the model is served. Raises GaveUp or GatewayUnavailable if it will not be."""
        serving = asyncio.create_task(served_model(self.url, patience_s=_PATIENCE_S))
        giving_up = asyncio.create_task(self._supervisor.gave_up())
        try:
            await asyncio.wait((serving, giving_up), return_when=asyncio.FIRST_COMPLETED)
            if giving_up.done():
                giving_up.result()
            return await serving
        finally:
            serving.cancel()
            giving_up.cancel()

    def pids(self) -> dict[str, int]:
        """Return the pids of the running processes by name, including Redis."""
        found = {name: self._supervisor.pid(name) for name in ("redis", "gateway", *self._workers)}
        return {name: pid for name, pid in found.items() if pid is not None}

    async def rest(self) -> None:
        """Wait until no process computes any more: a ready worker still moves its memory into large pages.

        The wait is limited: on a busy machine, idle work may take longer.
        """
        before_s = self._cpu_s()
        for _ in range(_MOST_RESTS):
            await asyncio.sleep(_REST_S)
            now_s = self._cpu_s()
            if now_s - before_s < _RESTS_BELOW * _REST_S:
                return
            before_s = now_s

    def _cpu_s(self) -> float:
        return sum(map(cpu_s, self.pids().values()))

    async def queue_length(self) -> int:
        """Return the waiting and running requests: the sum of XLEN of the request streams."""
        return await RequestQueue(self._open_link(), self._keys).depth()

    async def headcount(self) -> Headcount:
        """Return the workers' states, from their processes and from their reports in Redis."""
        pids = [str(self._supervisor.pid(name)) for name in self._workers]
        draining = len(self._draining)
        found = await list_workers(self._open_link(), self._keys)
        ready = sum(worker.alive and worker.info.get("pid") in pids for worker in found)
        return Headcount(ready, len(pids) - ready, draining)

    async def stop(self) -> None:
        """Stop everything, workers and gateway first."""
        for name in self._workers:
            self._drain(name)
        await asyncio.gather(*self._draining.values())
        await self._supervisor.stop("gateway", grace_s=_STOP_MARGIN_S)
        if self._link is not None:
            await self._link.close()
        await self._redis.stop()

    def _drain(self, name: str) -> None:
        task = asyncio.create_task(self._supervisor.stop(name, grace_s=self._drain_s))
        self._draining[name] = task
        task.add_done_callback(lambda _: self._draining.pop(name))

    def _open_link(self) -> Link:
        if self._link is None:
            raise RuntimeError("the site has not been started")
        return self._link

    def _program(self, name: str, command: str, settings: Mapping[str, object]) -> Program:
        variables = {f"ORCASTREAM_{key.upper()}": str(value) for key, value in settings.items()}
        shared = {
            **self._environment,
            "ORCASTREAM_REDIS_URL": self._redis.url,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return Program(
            name, (sys.executable, "-m", "orcastream.cli.main", command), {**variables, **shared, **import_path()}
        )


@asynccontextmanager
async def ready_site(
    model: str,
    *,
    workers: int = 1,
    worker: Mapping[str, object] | None = None,
    gateway: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Site, str]]:
    """Yield a serving site and its model's served name. Settings as in `Site`.

    Raises GaveUp, with the last lines of the processes, if one of them cannot run, else GatewayUnavailable in the end.
    """
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with tempfile.TemporaryDirectory(prefix="orcastream-bench-") as directory:
        site = Site(
            Path(directory),
            model,
            lambda name, line: lines.append(f"{name} | {line}"),
            worker=worker or {},
            gateway=gateway or {},
            drain_grace_s=1.0,
            environment=environment,
        )
        try:
            await site.start()
            await site.scale_to(workers)
            try:
                name = await site.ready()
            except GaveUp as error:
                raise GaveUp(*lines, *error.lines) from None
            yield site, name
        finally:
            await site.stop()
