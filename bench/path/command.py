"""Measure the overhead around the engine: the cost per token and per request besides the model's arithmetic.

publish: CPU time of a worker's event loop per token event, with an engine that computes nothing.
share:   increase of an iteration's time while its tokens are published from the same process.
through: output tokens per second through gateway and Redis relative to the engine alone, alternately.
first:   time to first token added by gateway and Redis, with the demo model alone and served alternately.
host:    time of an iteration without the forward pass.
start:   time from `orcastream worker` to ready, and its memory then.
events:  CPU time of a gateway per SSE event, and the delay of events.
admit:   time to admit a long prompt.

Redis is our own server unless one is named. CPU time is that of the process or thread alone, but other load on the
machine increases it: measure on a quiet machine.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from orcastream import demo
from orcastream.bench.figures.json_file import write_json
from orcastream.bench.figures.machine import machine, versions
from orcastream.bench.flags import Parser, above_zero, at_least, check_outputs
from orcastream.bench.redis.own_redis import own_redis
from orcastream.broker.link import Link
from orcastream.cli.cores import usable_cores
from orcastream.worker.main import SWITCH_INTERVAL_S

PARTS = ("publish", "share", "through", "first", "host", "start", "events", "admit")
Row = tuple[str, str, str, str]
"""Measurement, load, figure, goal."""
Part = Callable[[argparse.Namespace, str, Link], Awaitable[tuple[list[Row], Any]]]


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parse(arguments)
    check_outputs(options)
    rows, figures = asyncio.run(_measure(options))
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("what", "load", "measured", "goal"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    Console(width=120, highlight=False).print(table)
    if options.json:
        found = {"machine": machine(), "versions": versions(), "figures": figures}
        write_json(options.json, found)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("path", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measurements to run (all)")
    parser.add_argument("--redis-url", help="an empty database (default: an embedded server with an append-only file)")
    parser.add_argument(
        "--seconds", type=above_zero, default=4.0, help="seconds of publishing per figure (%(default)g)"
    )
    parser.add_argument(
        "--interval-ms", type=above_zero, default=10.0, help="length of an iteration of `publish` (%(default)g)"
    )
    parser.add_argument("--running", type=at_least(1), default=64, help="requests that publish (%(default)s)")
    parser.add_argument(
        "--rounds", type=at_least(1), default=5, help="rounds of `share`, `through`, `first` (%(default)s)"
    )
    parser.add_argument("--model", default="", help="model of `share`, `through` and `start` (the demo model)")
    parser.add_argument("--threads", type=at_least(1), help="torch's threads in `through` (one per core)")
    parser.add_argument("--batch", type=at_least(1), default=16, help="requests at once in `through` (%(default)s)")
    parser.add_argument("--rate", type=above_zero, default=5.0, help="requests/s of `first` (%(default)g)")
    parser.add_argument("--host-running", type=at_least(1), default=256, help="requests of `host` (%(default)s)")
    parser.add_argument("--streams", type=at_least(2), default=100, help="number of clients of `events` (%(default)s)")
    parser.add_argument("--events-per-s", type=above_zero, default=2000.0, help="events of all clients (%(default)g)")
    parser.add_argument(
        "--prompt-tokens", type=at_least(1), default=100_000, help="prompt length of `admit` (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(list(arguments))


async def _measure(options: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    rows: list[Row] = []
    figures: dict[str, Any] = {}
    async with own_redis(options.redis_url) as (url, link):
        for part in PARTS:
            if part in options.only:
                print(f"{part} ...", file=sys.stderr, flush=True)
                if part in _IN_A_WORKER:
                    found, figures[part] = await asyncio.to_thread(_as_in_a_worker, _RUN[part], options, url)
                else:
                    found, figures[part] = await _RUN[part](options, url, link)
                rows += found
    return rows, figures


def _as_in_a_worker(part: Part, options: argparse.Namespace, url: str) -> tuple[list[Row], Any]:
    """Run `part` on an event loop like a worker's, in its own thread: only the other kind spawns processes."""

    async def measure() -> tuple[list[Row], Any]:
        link = await Link.open(url)
        try:
            return await part(options, url, link)
        finally:
            await link.close()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return uvloop.run(measure())
    finally:
        sys.setswitchinterval(interval_s)


async def _publish(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.publishing import idle_commands_per_s, publishing

    found = await publishing(
        url, link, running=options.running, interval_s=options.interval_ms / 1000, seconds=options.seconds
    )
    idle = await idle_commands_per_s(url, link, options.seconds)
    load = f"{found.running} running, {found.interval_ms:g} ms"
    return [
        ("worker's event loop per token event", load, f"{found.loop_us:.1f} µs", "4 µs"),
        ("Redis per token event", load, f"{found.server_us:.1f} µs", "10 µs"),
        ("commands of a worker", "idle", f"{idle:.1f} /s", "a few"),
    ], {**asdict(found), "idle_commands_per_s": idle}


async def _share(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.sharing import sharing

    found = await sharing(url, link, model=options.model, running=options.running, rounds=options.rounds)
    load = f"{found.running} running, alone {found.alone_ms:.2f} ms"
    return [("iteration while publishing", load, f"{found.longer:+.1%}", "+3 %")], asdict(found)


async def _through(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.through import through

    model, threads = options.model or str(demo.MODEL_DIR), options.threads or usable_cores()
    found = await through(
        model=model, workload="equal_size", rate=None, threads=threads, rounds=options.rounds, batch=options.batch
    )
    load = f"equal_size, {threads} threads, rounds {min(found.ratios):.0%} to {max(found.ratios):.0%}"
    return [("output tokens/s through gateway, to the engine's", load, f"{found.throughput:.1%}", "95 %")], (
        asdict(found)
    )


async def _first(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.through import through

    found = await through(
        model=str(demo.MODEL_DIR), workload="orca_trace", rate=options.rate, threads=1, rounds=options.rounds, batch=32
    )
    load = f"orca_trace, {options.rate:g}/s; request by request {found.added_to_each_ms:.1f} ms"
    return [
        (f"added to the first token, p{percent}", load, f"{found.added_ttft_ms(percent / 100):.1f} ms", goal)
        for percent, goal in ((50, "4 ms"), (99, "15 ms"))
    ], asdict(found)


async def _host(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.host_work import host_work

    found = await asyncio.to_thread(host_work, options.host_running, 200)
    parts = f"select {found.select_ms:.2f}, lay out {found.build_ms:.2f}, sample {found.sample_ms:.2f}"
    return [("host work per iteration", f"{found.running} running: {parts}", f"{found.total_ms:.2f} ms", "1.5 ms")], (
        asdict(found)
    )


async def _start(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.starting import starting

    found = await starting(url, options.model or str(demo.MODEL_DIR))
    load = f"weights {found.weights_mib:.0f} MiB, at most {found.peak_mib:.0f} MiB on the way"
    return [
        ("from `orcastream worker` to ready", "", f"{found.ready_s:.1f} s", "8 s"),
        ("worker's memory without weights and KV pool", load, f"{found.beside_weights_mib:.0f} MiB", "600 MB"),
    ], asdict(found)


async def _events(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.gateway_events import gateway_events

    found = await gateway_events(
        url, link, streams=options.streams, events_per_s=options.events_per_s, seconds=options.seconds
    )
    load = f"{found.streams} clients, {found.events_per_s:,.0f} events/s"
    p50_ms, p99_ms = found.delay_ms
    return [
        ("SSE events per second of the gateway's CPU", load, f"{found.per_cpu_s:,.0f}", "12,000"),
        ("event delay, p50 and p99", load, f"{p50_ms:.1f}, {p99_ms:.1f} ms", "p99 25 ms"),
        ("clients and writer of this load", load, f"{found.load_busy:.0%} of a core", "far from 100 %"),
    ], asdict(found)


async def _admit(options: argparse.Namespace, url: str, link: Link) -> tuple[list[Row], Any]:
    from orcastream.bench.path.admission import admitting

    found = await asyncio.to_thread(admitting, options.prompt_tokens, 7)
    return [
        (
            f"prompt admitted, as {one.form}",
            f"{one.tokens:,} tokens: tokenizing {one.tokenizing_ms:.0f}, worker {one.worker_ms:.0f}",
            f"{one.gateway_ms + one.worker_ms:.0f} ms",
            "50 ms",
        )
        for one in found
    ], [asdict(one) for one in found]


_RUN: dict[str, Part] = {
    "publish": _publish,
    "share": _share,
    "through": _through,
    "first": _first,
    "host": _host,
    "start": _start,
    "events": _events,
    "admit": _admit,
}
_IN_A_WORKER = ("publish", "share")
