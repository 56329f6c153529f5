"""All processes of one machine – Redis, one gateway, workers: start them, keep them running, stop them in order."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping

import httpx
from redis.exceptions import ResponseError

from orcastream.broker.connect import connect
from orcastream.broker.errors import LinkLost
from orcastream.broker.presence import list_workers
from orcastream.cli.cores import usable_cores
from orcastream.cli.embedded_redis import EmbeddedRedis, RedisUnavailable
from orcastream.cli.environment import as_environment, import_path
from orcastream.cli.ports import PortUnavailable, claimable_port
from orcastream.cli.process import Program
from orcastream.cli.supervisor import Supervisor
from orcastream.cli.up_settings import UpSettings
from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.keys import Keys
from orcastream.worker.settings import WorkerSettings

_READY_POLL_S = 0.1
_STOP_MARGIN_S = 10.0
"""Time that gateway and workers get beyond their grace to hand over and exit, before they are killed."""
_PING_TIMEOUT_S = 5.0
_LAST_PORT = 65535


class Stack:
    """The processes of `orcastream up`. `report(name, line)` gets their output and their starts and ends."""

    def __init__(self, settings: UpSettings, report: Callable[[str, str], None]) -> None:
        self._settings = settings
        self._supervisor = Supervisor(report)
        self._embedded = (
            None if settings.redis_url else EmbeddedRedis(self._supervisor, settings.data_dir, settings.redis_port)
        )
        self._port = settings.port
        self.workers = tuple(f"worker-{number}" for number in range(1, settings.workers + 1))

    @property
    def url(self) -> str:
        """The gateway's URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def redis_url(self) -> str:
        """The URL of the server that gateway and workers use."""
        return self._embedded.url if self._embedded else str(self._settings.redis_url)

    @property
    def _connection_url(self) -> str:
        return self._embedded.url if self._embedded else str(self._settings.connection_url)

    async def start(self) -> None:
        """Start everything, Redis first. Raises UserError if that is not possible; then nothing is left running."""
        self._port = claimable_port(self._settings.host, self._settings.port, "port")
        self._check_other_ports()
        await self._start_redis()
        await self._supervisor.start(self._gateway())
        for name in self.workers:
            await self._supervisor.start(self._worker(name))

    async def ready(self, num_workers: int = 1) -> None:
        """Wait until the gateway and `num_workers` workers are ready. Raises GaveUp if a program cannot run."""
        polling = asyncio.create_task(self._poll_readiness(num_workers))
        giving_up = asyncio.create_task(self._supervisor.gave_up())
        done, pending = await asyncio.wait((polling, giving_up), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()

    async def gave_up(self) -> None:
        """Wait until a program has ended for good, then raise GaveUp."""
        await self._supervisor.gave_up()

    def pid(self, name: str) -> int | None:
        """The pid of a running program."""
        return self._supervisor.pid(name)

    async def stop(self) -> None:
        """Stop gateway and workers first, each with its grace for current requests, and Redis last."""
        grace_s = max(self._settings.drain_grace_s, self._settings.shutdown_grace_s) + _STOP_MARGIN_S
        await self._supervisor.stop("gateway", *self.workers, grace_s=grace_s)
        if self._embedded:
            await self._embedded.stop()

    def kill(self) -> None:
        """Kill everything at once."""
        self._supervisor.kill()

    def _check_other_ports(self) -> None:
        """Check that Redis and the workers' admin ports need no port of another process. Raises PortUnavailable."""
        settings = self._settings
        taken = {self._port: "the gateway's"}
        if settings.process_port:
            own = range(settings.process_port, settings.process_port + settings.gateway_workers)
            taken |= dict.fromkeys(own, "the gateway's")
        if self._embedded and settings.redis_port:
            _check_not_taken("redis_port", settings.redis_port, taken, "a free port, or 0 for any")
            taken[settings.redis_port] = "the embedded Redis server's"
        first = settings.admin_port
        for port in range(first, first + len(self.workers)) if first else ():
            if port > _LAST_PORT:
                raise PortUnavailable(
                    f"admin_port: got {first}, allowed with {len(self.workers)} workers: at most "
                    f"{_LAST_PORT + 1 - len(self.workers)}, because each has its own port"
                )
            _check_not_taken("admin_port", port, taken, "a free port, 0 for any, or none")
            claimable_port(settings.admin_host, port, "admin_port")

    async def _start_redis(self) -> None:
        if self._embedded:
            await self._embedded.start()
            return
        try:
            link = await connect(self._connection_url, name="orcastream-up", reply_timeout_s=_PING_TIMEOUT_S)
            await link.close()
        except (LinkLost, ResponseError) as error:
            raise RedisUnavailable(f"redis_url: no Redis server answers there: {error}") from None

    def _gateway(self) -> Program:
        own = {"ORCASTREAM_PORT": str(self._port)}
        return self._program("gateway", "gateway", as_environment(self._settings, GatewaySettings) | own)

    def _worker(self, name: str) -> Program:
        threads = self._settings.torch_threads or max(1, usable_cores() // self._settings.workers)
        own = {"ORCASTREAM_TORCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        if self._settings.admin_port:
            own["ORCASTREAM_ADMIN_PORT"] = str(self._settings.admin_port + self.workers.index(name))
        if "allow_policy_switch" not in self._settings.model_fields_set:
            own["ORCASTREAM_ALLOW_POLICY_SWITCH"] = "true"
        return self._program(name, "worker", as_environment(self._settings, WorkerSettings) | own)

    def _program(self, name: str, command: str, environment: Mapping[str, str]) -> Program:
        shared = {"ORCASTREAM_REDIS_URL": self.redis_url, "PYTHONUNBUFFERED": "1", **import_path()}
        return Program(name, (sys.executable, "-P", "-m", "orcastream.cli.main", command), {**environment, **shared})

    async def _poll_readiness(self, num_workers: int) -> None:
        await _until(lambda: _are_there(num_workers, self._connection_url, self._settings.keys()))
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            await _until(lambda: _answers_ready(client))


def _check_not_taken(setting: str, port: int, taken: Mapping[int, str], allowed: str) -> None:
    if port in taken:
        raise PortUnavailable(f"{setting}: port {port} is {taken[port]}; allowed: {allowed}")


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await holds():
            return
        await asyncio.sleep(_READY_POLL_S)


async def _are_there(num_workers: int, url: str, keys: Keys) -> bool:
    try:
        link = await connect(url, name="orcastream-up")
        try:
            return sum(worker.alive for worker in await list_workers(link, keys)) >= num_workers
        finally:
            await link.close()
    except LinkLost:
        return False


async def _answers_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
