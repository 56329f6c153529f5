"""Many clients at once: open loop, where requests come when they come, and closed loop, where each client waits."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from bench.client import Client
from bench.outcome import Outcome
from bench.workload import Workload


class Stop:
    """Asks for no more requests; those that are under way end."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """No more requests from now on."""
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def within(self, seconds: float) -> bool:
        """Wait that long; True as soon as it is set."""
        if seconds <= 0 or self._event.is_set():
            return self._event.is_set()
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        return True


async def open_loop(
    client: Client,
    workload: Workload,
    arrivals: Iterable[float],
    outcomes: list[Outcome],
    stop: Stop,
    *,
    concurrency: int | None = None,
) -> None:
    """Ask at each arrival (seconds from now), whether or not earlier answers have come.

    With `concurrency` at most that many are under way; a request that waits for a place has arrived all the same.
    Appends each outcome to `outcomes` when it ends; returns when all have.
    """
    begun = time.monotonic()
    places = asyncio.Semaphore(concurrency) if concurrency else None
    async with _group() as tasks:
        for at in arrivals:
            due = begun + at
            if await stop.within(due - time.monotonic()):
                break
            tasks.add(asyncio.create_task(_ask(client, workload, due, outcomes, places)))


async def _ask(
    client: Client, workload: Workload, due: float, outcomes: list[Outcome], places: asyncio.Semaphore | None
) -> None:
    question = workload.draw()
    if places is None:
        outcomes.append(await client.ask(question, due))
        return
    async with places:
        outcomes.append(await client.ask(question, due))


async def closed_loop(
    client: Client,
    workload: Workload,
    *,
    concurrency: int,
    duration_s: float,
    outcomes: list[Outcome],
    stop: Stop,
) -> None:
    """`concurrency` clients, each of which asks again as soon as it has its answer, for `duration_s`."""
    until = time.monotonic() + duration_s

    async def one_after_another() -> None:
        while time.monotonic() < until and not stop:
            outcomes.append(await client.ask(workload.draw()))

    async with _group() as tasks:
        tasks.update(asyncio.create_task(one_after_another()) for _ in range(concurrency))


@asynccontextmanager
async def _group() -> AsyncIterator[set["asyncio.Task[None]"]]:
    """Tasks that are awaited at the end, or cancelled where the caller is."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
