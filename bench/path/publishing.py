"""The CPU time of a worker's event loop per token: a whole worker with an engine that computes nothing."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orcastream.bench.path.paced_engine import PacedEngine
from orcastream.bench.redis.own_redis import info, server_cpu_s
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue
from orcastream.engine import OrcaEngine
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, parse_payload
from orcastream.worker.settings import WorkerSettings
from orcastream.worker.worker import Worker

_KEYS = Keys("bench-model", "bench-path")
_DEADLINE_MS = 3_600_000
_SETTLE_S = 0.5
_POLL_S = 0.02
_SELDOM_S = 0.2


@dataclass(frozen=True)
class Publishing:
    """`events` token events of `running` requests at one event per request and iteration of `interval_ms`.

    `loop_us` is the CPU time of the worker's event loop per event (claims, leases and all else that runs there
    included), `server_us` that of Redis.
    """

    running: int
    interval_ms: float
    events: int
    loop_us: float
    server_us: float


async def publishing(url: str, link: Link, *, running: int, interval_s: float, seconds: float) -> Publishing:
    """Publish for `seconds` at a steady pace, after all requests have begun."""
    engine = PacedEngine(running, interval_s)
    async with working(url, engine.as_engine(), running):
        await post(link, running, max_tokens=int((seconds + 60) / interval_s))
        await _until(lambda: engine.num_events > 0 and engine.stats().running == running)
        await asyncio.sleep(_SETTLE_S)
        cpu_s, server_s = time.thread_time(), await server_cpu_s(link)
        events = engine.num_events
        await asyncio.sleep(seconds)
        cpu_s, server_s = time.thread_time() - cpu_s, await server_cpu_s(link) - server_s
        events = engine.num_events - events
    await link.call("FLUSHDB")
    per_event = 1e6 / events
    return Publishing(running, interval_s * 1000, events, cpu_s * per_event, server_s * per_event)


async def idle_commands_per_s(url: str, link: Link, seconds: float) -> float:
    """Return the commands per second from a worker without requests."""
    async with working(url, PacedEngine(8, 1.0).as_engine(), 8):
        await asyncio.sleep(_SETTLE_S + 1)
        before = int((await info(link, "stats"))["total_commands_processed"])
        await asyncio.sleep(seconds)
        after = int((await info(link, "stats"))["total_commands_processed"])
    await link.call("FLUSHDB")
    return (after - before - 1) / seconds


@asynccontextmanager
async def working(url: str, engine: OrcaEngine, running: int) -> AsyncIterator[Worker]:
    """Run a worker with `engine` on this loop, which claims `running` requests at once."""
    settings = WorkerSettings(
        model="bench-model", max_claims=running, max_batch_size=running, max_num_batched_tokens=4096, drain_grace_s=0
    )
    worker = Worker(settings, url, _KEYS, f"bench-{uuid.uuid4().hex[:8]}", engine, None)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        await task


async def post(link: Link, count: int, *, max_tokens: int, prompt: tuple[int, ...] = tuple(range(20, 52))) -> None:
    """Enqueue `count` requests in the queue that `working` serves."""
    queue = RequestQueue(link, _KEYS)
    await queue.ensure_groups()
    payload = parse_payload({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.0})
    deadline_ms = int(time.time() * 1000) + _DEADLINE_MS
    for _ in range(count):
        request = GenerationRequest(f"cmpl-{uuid.uuid4().hex}", payload, deadline_ms)
        await queue.enqueue(request, terms=None, retention_ms=1000)


async def all_ended(link: Link) -> None:
    """Wait until the queue that `working` serves is empty. It polls seldom, because it shares the measured loop."""
    queue = RequestQueue(link, _KEYS)
    while True:
        if not await queue.depth():
            return
        await asyncio.sleep(_SELDOM_S)


async def _until(reached: Callable[[], bool]) -> None:
    while True:
        if reached():
            return
        await asyncio.sleep(_POLL_S)
