"""Measure the tokens per second that one Redis can carry.

A writer appends one event to each of many reply logs per write, like a worker after an iteration, as fast as Redis
accepts them; a reader follows all of them over one connection, like a gateway. Writer, reader and server are separate
processes. This yields two figures: events per second through one worker's and one gateway's code, and the server's CPU
time per event, whose inverse is the maximum for one server.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.flags import Parser, above_zero, at_least
from orcastream.bench.redis.own_redis import own_redis, server_cpu_s, server_version
from orcastream.bench.redis.replies import Replies
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.reader import ReplyReader
from orcastream.schemas.keys import Keys

_KEYS = Keys("bench-model")
_RETENTION_MS = 3_600_000


@dataclass(frozen=True)
class Rate:
    """One measurement: `events` of `tokens` tokens each over `streams` logs in `seconds`, and the server's CPU time."""

    streams: int
    tokens: int
    events: int
    seconds: float
    server_cpu_s: float

    @property
    def events_per_s(self) -> float:
        """Events written and read per second."""
        return self.events / self.seconds

    @property
    def server_us_per_event(self) -> float:
        """Server CPU time per event written and read once, in microseconds."""
        return self.server_cpu_s / self.events * 1e6

    @property
    def most_tokens_per_s(self) -> float:
        """The maximum for one server whose thread does nothing else."""
        return self.tokens * self.events / self.server_cpu_s


async def measure(url: str, link: Link, *, streams: int, tokens: int, seconds: float) -> Rate:
    """Write for `seconds`, at least one event per stream, and wait until everything is read."""
    replies = await Replies.begin(link, _KEYS, streams)
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orcastream.cli.main", "bench", "redis-rate", "--redis-url", url, "--read"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    try:
        reader.stdin.write(json.dumps(replies.ids).encode() + b"\n")
        await reader.stdout.readline()
        cpu_s, begun_s, iterations = await server_cpu_s(link), time.monotonic(), 0
        while not iterations or time.monotonic() < begun_s + seconds:
            await replies.advance(tokens)
            iterations += 1
        await replies.end()
        read = json.loads(await reader.stdout.readline())
        took_s, cpu_s = time.monotonic() - begun_s, await server_cpu_s(link) - cpu_s
    finally:
        with suppress(ProcessLookupError):
            reader.kill()
        await reader.wait()
    if read != iterations * streams * tokens:
        raise RuntimeError(f"the reader saw {read} tokens of {iterations * streams * tokens}")
    await link.call("FLUSHDB")
    return Rate(streams, tokens, iterations * streams, took_s, cpu_s)


async def read(url: str, ids: Sequence[str]) -> int:
    """Follow the replies to their ends; return the number of tokens seen."""
    reader = ReplyReader(url, _KEYS, "bench-reader", retention_ms=_RETENTION_MS)
    subscriptions = [reader.subscribe(Watch(request_id, "default")) for request_id in ids]
    await reader.start()
    await reader.connected.wait()
    print("reading", flush=True)

    async def follow(number: int) -> int:
        async with subscriptions[number] as subscription:
            return sum([len(run.tokens) async for update in subscription for run in update.runs])

    try:
        return sum(await asyncio.gather(*(follow(number) for number in range(len(ids)))))
    finally:
        await reader.close()


async def _measure_all(options: argparse.Namespace) -> tuple[str, list[Rate]]:
    async with own_redis(options.redis_url) as (url, link):
        rates = [
            await measure(url, link, streams=streams, tokens=tokens, seconds=options.seconds)
            for streams in options.streams
            for tokens in options.tokens
        ]
        return await server_version(link), rates


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    parser = Parser("redis-rate", __doc__)
    parser.add_argument("--redis-url", help="an empty database (default: an embedded server with an append-only file)")
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[8, 64, 256], help="reply logs (%(default)s)")
    parser.add_argument("--tokens", type=at_least(1), nargs="+", default=[1, 4], help="tokens per event (%(default)s)")
    parser.add_argument("--seconds", type=above_zero, default=5.0, help="seconds of writing per figure (%(default)g)")
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(list(arguments))
    if options.read:
        print(asyncio.run(read(options.redis_url, json.loads(sys.stdin.readline()))), flush=True)
        return 0
    version, rates = asyncio.run(_measure_all(options))
    table = Table(box=box.SIMPLE, pad_edge=False, title=version, title_justify="left")
    for heading in ("streams", "tokens per event", "events/s", "tokens/s", "server µs per event", "tokens/s at most"):
        table.add_column(heading, justify="right")
    for rate in rates:
        figures = (rate.events_per_s, rate.events_per_s * rate.tokens)
        table.add_row(
            *(str(rate.streams), str(rate.tokens), *(f"{figure:,.0f}" for figure in figures)),
            *(f"{rate.server_us_per_event:.1f}", f"{rate.most_tokens_per_s:,.0f}"),
        )
    Console(width=110, highlight=False).print(table)
    return 0
