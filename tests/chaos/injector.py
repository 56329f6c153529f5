"""When each fault occurs, and how many may be active at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.chaos.http_client import HttpClient
from tests.chaos.server import Server
from tests.chaos.services import Service, Site

_MOST_PAUSE_S = 15.0
_WORKERS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned fault: seconds after the start, kind, which of several targets, severity (0 to 1)."""

    at_s: float
    kind: str
    target: int
    force: float


@dataclass(slots=True)
class Fault:
    """One past fault; `begin` and `end` are seconds of `time.monotonic()`. `note`: why it had no effect, if so."""

    kind: str
    target: str
    begin: float
    end: float = 0.0
    note: str = ""


def plan(rng: Random, kinds: Sequence[str], minutes: float, per_minute: float) -> list[Planned]:
    """Return all faults of a run. Kinds come in rounds, each in its own order, so that none is left out."""
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
    """Executes the plan. Faults may overlap, but one worker of three, and one component of each kind, is left alone."""

    def __init__(self, site: Site, http: HttpClient, acts: "Acts") -> None:
        self.site = site
        self.http = http
        self._acts = acts
        self.faults: list[Fault] = []
        self._redis = asyncio.Lock()
        self._workers = asyncio.Semaphore(_WORKERS_AT_ONCE)
        self._gateways = asyncio.Lock()

    async def run(self, planned: Sequence[Planned]) -> None:
        """Execute the plan; return when the last fault has been healed."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for one in planned:
                await asyncio.sleep(begin + one.at_s - time.monotonic())
                tasks.create_task(self._acts[one.kind](self, one))

    @asynccontextmanager
    async def at_work(self, planned: Planned) -> AsyncIterator[tuple[Fault, Service]]:
        """Wait for the target, a worker or a gateway by its kind's first word, and record the fault."""
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
        """Wait until no other fault affects Redis, record the fault, and wait until it has healed."""
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


Act = Callable[[Injector, Planned], Coroutine[Any, Any, None]]
Acts = Mapping[str, Act]
