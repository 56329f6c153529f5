"""One worker with the demo model in this process, alternately watched, as by the console, and unwatched."""

import argparse
import asyncio
import time
from dataclasses import dataclass

from orcastream import demo
from orcastream.bench.redis.own_redis import own_redis
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.bench.telemetry.observed import Served
from orcastream.broker.link import Link
from orcastream.broker.stats import StatsStream
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.schemas.keys import Keys
from orcastream.worker.settings import WorkerSettings
from orcastream.worker.worker import Worker

_WATCHED_MS = 600_000


@dataclass(frozen=True)
class Round:
    """Output tokens per second, and CPU microseconds of this process per output token."""

    rate: float
    cpu_us: float


async def measure(options: argparse.Namespace) -> list[tuple[Round, Round]]:
    """Return pairs of rounds: unwatched, watched."""
    keys = Keys(DEMO_MODEL, "watched")
    async with own_redis(None) as (url, link):
        config = EngineConfig(model=str(demo.MODEL_DIR), device="cpu", self_check=False)
        settings = WorkerSettings(model=str(demo.MODEL_DIR), _env_file=None)
        worker = Worker(settings, url, keys, "bench", OrcaEngine.load(config), None)
        running = asyncio.create_task(worker.run())
        served, pairs = Served(link, keys), []
        for number in range(-1, options.rounds):
            order = (False, True) if number % 2 else (True, False)
            rounds = {is_watched: await _round(link, keys, served, is_watched, options) for is_watched in order}
            if number >= 0:  # the first pair warms everything up
                pairs.append((rounds[False], rounds[True]))
        worker.drain()
        await running
    return pairs


async def _round(link: Link, keys: Keys, served: Served, is_watched: bool, options: argparse.Namespace) -> Round:
    if is_watched:
        await StatsStream(link, keys).watch(for_ms=_WATCHED_MS)
    else:
        await link.call("DEL", keys.watched)
    await asyncio.sleep(1.0)  # time for two reads of the key
    cpu_s = time.process_time()
    rate = await served.throughput(options.requests, options.tokens)
    cpu_s = time.process_time() - cpu_s
    return Round(rate, cpu_s / (options.requests * options.tokens) * 1e6)
