"""The faults: when each comes, what it does, and how long it lasts."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

from tests.chaos.http_client import HttpClient
from tests.chaos.sentinel_service import SentinelService
from tests.chaos.server import Server
from tests.chaos.services import LEASE_MS, Service, Site
from tests.chaos.thread_stop import busiest_thread, stall

_LEASE_S = LEASE_MS / 1000
_MOST_PAUSE_S = 15.0
_WORKERS_AT_ONCE = 2
_ANSWER_S = 0.4
_KINDS_OF_PROMOTION = 3


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault to come: seconds after the start, what, to which of several targets, how hard (0 to 1)."""

    at_s: float
    kind: str
    target: int
    force: float


@dataclass(slots=True)
class Fault:
    """One fault that was; `begin` and `end` are seconds of `time.monotonic()`. `note`: why it did nothing, if so."""

    kind: str
    target: str
    begin: float
    end: float = 0.0
    note: str = ""


def plan(rng: Random, kinds: Sequence[str], minutes: float, per_minute: float) -> list[Planned]:
    """All faults of a run. Kinds come in rounds, each in an order of its own, so that none is left out."""
    planned: list[Planned] = []
    at_s, left = 2.0, list[str]()
    while True:
        at_s += min(rng.expovariate(per_minute / 60), _MOST_PAUSE_S)
        if not kinds or at_s >= minutes * 60:
            return planned
        if not left:
            left = rng.sample(list(kinds), len(kinds))
        planned.append(Planned(at_s, left.pop(), rng.randrange(6), rng.random()))


class Injector:
    """Carries the plan out. Faults may overlap, but one worker of three, and one thing in each, is left alone."""

    def __init__(self, site: Site, http: HttpClient) -> None:
        self.site = site
        self.http = http
        self.faults: list[Fault] = []
        self._redis = asyncio.Lock()
        self._workers = asyncio.Semaphore(_WORKERS_AT_ONCE)
        self._gateways = asyncio.Lock()

    async def run(self, planned: Sequence[Planned]) -> None:
        """Returns when the last fault has been healed."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for one in planned:
                await asyncio.sleep(begin + one.at_s - time.monotonic())
                tasks.create_task(FAULTS[one.kind](self, one))

    @asynccontextmanager
    async def at_work(self, planned: Planned) -> AsyncIterator[tuple[Fault, Service]]:
        """Wait for the target, and note the fault: to a worker or a gateway by its kind's first word."""
        is_worker = planned.kind.startswith(("worker", "engine"))
        services = self.site.workers if is_worker else self.site.gateways
        service = services[planned.target % len(services)]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._workers if is_worker else self._gateways)
            await stack.enter_async_context(service.disturbed)
            with self._noted(planned.kind, service.name) as fault:
                yield fault, service

    @asynccontextmanager
    async def at_redis(self, planned: Planned) -> AsyncIterator[tuple[Fault, Server]]:
        """Wait until nothing else befalls Redis, note the fault, and wait until it has healed."""
        async with self._redis:
            with self._noted(planned.kind, "redis") as fault:
                yield fault, self.site.redis.target(planned.target)
                fault.note = fault.note or await self.site.redis.healed()

    def _noted(self, kind: str, target: str) -> "_Noted":
        fault = Fault(kind, target, time.monotonic())
        self.faults.append(fault)
        return _Noted(fault)


class _Noted:
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __enter__(self) -> Fault:
        return self._fault

    def __exit__(self, *_: object) -> None:
        self._fault.end = time.monotonic()


async def _kill(injector: Injector, planned: Planned) -> None:
    async with injector.at_work(planned) as (_, service):
        await service.kill()
        await asyncio.sleep(planned.force)
        await injector.site.revive(service)


async def _drain(injector: Injector, planned: Planned) -> None:
    """SIGTERM; exit status 0 is promised."""
    async with injector.at_work(planned) as (_, service):
        service.signal(signal.SIGTERM)
        code = await service.ended()
        if code != 0:
            injector.site.died.append(f"{service.name} was told to stop and ended with status {code}")
            await service.kill()
        await injector.site.revive(service)


async def _freeze(injector: Injector, planned: Planned) -> None:
    """SIGSTOP beyond the lease, SIGCONT."""
    async with injector.at_work(planned) as (_, service):
        service.signal(signal.SIGSTOP)
        await asyncio.sleep(_LEASE_S * (1.2 + 1.5 * planned.force))
        service.signal(signal.SIGCONT)


async def _stall_engine(injector: Injector, planned: Planned) -> None:
    """The engine's thread stands still beyond the lease, while the rest of the worker lives."""
    async with injector.at_work(planned) as (fault, service):
        thread_id = busiest_thread(service.pid) if service.pid else None
        if thread_id is None:
            fault.note = "no engine"
            return
        seconds = _LEASE_S * (1.2 + 1.5 * planned.force)
        try:
            if not await asyncio.to_thread(stall, thread_id, seconds, lambda: _answers_now(service.port)):
                fault.note = "the engine held the interpreter each time"
        except OSError as error:
            fault.note = f"not possible here: {error}"


async def _kill_redis(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        await injector.site.redis.kill(server)
        await asyncio.sleep(2 * planned.force)
        await server.start()


async def _freeze_redis(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(0.3 + 1.5 * _LEASE_S * planned.force)
        server.signal(signal.SIGCONT)


async def _refuse(injector: Injector, planned: Planned) -> None:
    """Connections are cut and refused; one time in eight for 20 s."""
    async with injector.at_redis(planned):
        redis = injector.site.redis
        await redis.refuse(everywhere=planned.target % 2 == 0)
        await asyncio.sleep(20 if planned.force > 0.875 else 0.3 + 5 * planned.force)
        await redis.listen()


async def _cut(injector: Injector, planned: Planned) -> None:
    """Connections are cut in the middle of a command, or of an answer."""
    async with injector.at_redis(planned) as (_, server):
        server.proxy.cut("commands" if planned.target % 2 else "replies", 1 + int(5 * planned.force))
        await asyncio.sleep(1)


async def _fill_memory(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        await server.fill_memory()
        await asyncio.sleep(0.3 + 3 * planned.force)
        await server.free_memory()


async def _fill_disk(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        await server.fill_disk()
        await asyncio.sleep(1 + 3 * planned.force)
        await server.free_disk()


async def _lose_machine(injector: Injector, planned: Planned) -> None:
    """Redis is killed, and up to a second of what it had acknowledged has not reached the disk."""
    async with injector.at_redis(planned) as (_, server):
        await injector.site.redis.lose_machine(server, planned.force)
        await server.start()


async def _promote(injector: Injector, planned: Planned) -> None:
    """The master is killed, frozen, or asked to step down, until the replica is the master; half the time the replica
    has been behind for up to a second."""
    redis = injector.site.redis
    assert isinstance(redis, SentinelService)
    async with injector.at_redis(planned) as (fault, server):
        if planned.target >= _KINDS_OF_PROMOTION:
            await redis.hold_up_replication()
            await asyncio.sleep(planned.force)
        match planned.target % _KINDS_OF_PROMOTION:
            case 0:
                fault.note = await redis.changed(server.kill)
                await server.start()
            case 1:
                fault.note = await redis.changed(lambda: asyncio.to_thread(server.signal, signal.SIGSTOP))
                server.signal(signal.SIGCONT)
            case _:
                fault.note = await redis.changed(redis.promote)


async def _drop_clients(injector: Injector, planned: Planned) -> None:
    """Some clients lose their connections, and come back."""
    streams = list(injector.http.open_streams.values())
    for broken in streams[: 1 + int(4 * planned.force)]:
        broken.set()
    now = time.monotonic()
    note = "" if streams else "no client was there"
    injector.faults.append(Fault(planned.kind, f"{len(streams)} streams", now, now, note))


def _answers_now(port: int) -> bool:
    """Whether a worker's admin port answers within a moment: some thread of it runs Python."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection:
            connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
            return bool(connection.recv(16))
    except OSError:
        return False


FAULTS: dict[str, Callable[[Injector, Planned], Awaitable[None]]] = {
    "worker-kill": _kill,
    "worker-freeze": _freeze,
    "worker-drain": _drain,
    "engine-stall": _stall_engine,
    "gateway-kill": _kill,
    "gateway-drain": _drain,
    "redis-kill": _kill_redis,
    "redis-freeze": _freeze_redis,
    "redis-refuse": _refuse,
    "redis-cut": _cut,
    "redis-memory": _fill_memory,
    "redis-disk": _fill_disk,
    "machine-lost": _lose_machine,
    "replica-promoted": _promote,
    "client-gone": _drop_clients,
}
_ONLY_IN = {"machine-lost": "everysec", "replica-promoted": "sentinel"}


def faults_of(mode: str) -> list[str]:
    """The kinds that a mode of Redis can suffer."""
    return [kind for kind in FAULTS if _ONLY_IN.get(kind, mode) == mode]
