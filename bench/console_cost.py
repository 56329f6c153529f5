"""Measure what being watched by the console costs a worker.

One worker with the demo model runs in this process and serves rounds of requests posted at once, alternately watched,
as by the console, and unwatched. Each pair of rounds gives a ratio of rates, which includes the machine's noise, and
one of the process's CPU time per token, which is less noisy. The gateway's work is not included.
Exit status: 0 if the median CPU time grows by less than the goal, else 1.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream import demo
from orcastream.bench.flags import Parser, at_least
from orcastream.bench.redis.own_redis import own_redis
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.bench.telemetry.observed import Served
from orcastream.broker.link import Link
from orcastream.broker.stats import StatsStream
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.schemas.keys import Keys
from orcastream.worker.settings import WorkerSettings
from orcastream.worker.worker import Worker

MOST_COST = 0.01
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


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    parser = Parser("console-cost", __doc__)
    parser.add_argument("--rounds", type=at_least(2), default=40, help="pairs of rounds (%(default)s)")
    parser.add_argument("--requests", type=at_least(1), default=64, help="requests posted at once (%(default)s)")
    parser.add_argument("--tokens", type=at_least(1), default=96, help="output tokens of each request (%(default)s)")
    options = parser.parse_args(list(arguments))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pairs = asyncio.run(measure(options))
    cost = _print(pairs)
    return 0 if cost < MOST_COST else 1


def _print(pairs: Sequence[tuple[Round, Round]]) -> float:
    """Print the table; return the median growth of the CPU time."""
    table = Table(box=box.SIMPLE, pad_edge=False, title=f"{len(pairs)} pairs of rounds", title_justify="left")
    for heading in ("", "not watched", "watched", "cost: median", "quartiles"):
        table.add_column(heading, justify="right")
    rates = [1 - watched.rate / alone.rate for alone, watched in pairs]
    cpus = [watched.cpu_us / alone.cpu_us - 1 for alone, watched in pairs]
    for name, read, costs in (("output tokens/s", "rate", rates), ("CPU per output token, µs", "cpu_us", cpus)):
        medians = [statistics.median(getattr(pair[index], read) for pair in pairs) for index in (0, 1)]
        low, middle, high = statistics.quantiles(costs, n=4)
        table.add_row(name, *(f"{one:,.0f}" for one in medians), f"{middle:+.2%}", f"{low:+.2%} … {high:+.2%}")
    Console(width=100).print(table)
    return statistics.median(cpus)
