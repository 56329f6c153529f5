"""Measure Redis's cost of accepting a request, by the number of workers that report what they serve.

Requests are enqueued by the gateway's code, with bounds for the queue and for the expected wait. If nothing waits, each
request goes to a worker at once; otherwise one request waits before all others. The figure is the time per call of the
script in INFO commandstats, during which all other commands wait.
"""

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.flags import Parser, at_least
from orcastream.bench.redis.own_redis import info, own_redis, server_version
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue
from orcastream.broker.terms import Terms
from orcastream.broker.throughput import Throughput, ThroughputReports
from orcastream.schemas.keys import GROUP, Keys
from orcastream.schemas.request import GenerationRequest, Payload

_KEYS = Keys("bench-model")
_STREAM = _KEYS.requests("normal")
_RETENTION_MS = 600_000
_TERMS = Terms(max_requests=10_000_000, max_wait_ms=_RETENTION_MS, max_wait_share=0.5)
_PAYLOAD = Payload(prompt=tuple(range(32)), max_tokens=300)
_SERVED = Throughput(tokens_per_s=1e9, token_ms=0.5, done=500, class_weight=4.0)


@dataclass(frozen=True)
class Enqueuing:
    """Microseconds of the server per request, with that number of `workers`."""

    workers: int
    something_waits: bool
    us_per_call: float


async def enqueuing(link: Link, workers: int, count: int, *, something_waits: bool) -> Enqueuing:
    """Enqueue `count` requests, of 32 prompt tokens each."""
    queue = RequestQueue(link, _KEYS)
    await queue.ensure_groups()
    for number in range(workers):
        await ThroughputReports(link, _KEYS, f"worker-{number}").tell(_SERVED, ttl_ms=_RETENTION_MS)
    deadline_ms = await link.server_time_ms() + _RETENTION_MS

    async def enqueue(number: int, *, waits: bool) -> None:
        request = GenerationRequest(f"request-{number}", _PAYLOAD, deadline_ms)
        await queue.enqueue(request, terms=_TERMS, retention_ms=_RETENTION_MS)
        if not waits:
            await link.call("XREADGROUP", "GROUP", GROUP, "worker", "COUNT", 1, "STREAMS", _STREAM, ">")

    await enqueue(0, waits=something_waits)  # loads the script into the server
    before = await _script_calls(link)
    for number in range(count):
        await enqueue(number + 1, waits=False)
    calls, us = (now - then for now, then in zip(await _script_calls(link), before, strict=True))
    await link.call("FLUSHDB")
    return Enqueuing(workers, something_waits, us / calls)


async def _script_calls(link: Link) -> tuple[int, int]:
    """Return the calls of scripts by hash so far, and their microseconds."""
    told = (await info(link, "commandstats")).get("cmdstat_evalsha", "")
    figures = dict(re.findall(r"(\w+)=(\d+)", told))
    return int(figures.get("calls", 0)), int(figures.get("usec", 0))


async def _measure_all(options: argparse.Namespace) -> tuple[str, list[Enqueuing]]:
    async with own_redis(options.redis_url) as (_, link):
        found = [
            await enqueuing(link, workers, options.count, something_waits=something_waits)
            for workers in options.workers
            for something_waits in (False, True)
        ]
        return await server_version(link), found


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    parser = Parser("redis-enqueue", __doc__)
    parser.add_argument("--redis-url", help="an empty database (default: an embedded server with an append-only file)")
    parser.add_argument("--workers", type=at_least(0), nargs="+", default=[1, 16, 128], help="(%(default)s)")
    parser.add_argument("--count", type=at_least(1), default=2000, help="requests per figure (%(default)s)")
    version, found = asyncio.run(_measure_all(parser.parse_args(list(arguments))))
    table = Table(box=box.SIMPLE, pad_edge=False, title=version, title_justify="left")
    for heading in ("workers", "something waits", "server µs per request"):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(str(one.workers), "yes" if one.something_waits else "no", f"{one.us_per_call:.1f}")
    Console(width=110, highlight=False).print(table)
    return 0
