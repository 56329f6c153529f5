"""Run a service for a long time under steady load, and check whether anything grows.

Starts its own Redis, gateway and workers on this machine; the capacity is measured first, then requests arrive at
random (Poisson) at a share of it. Memory and descriptors are those of the processes, latencies those of the clients,
both per window. Exit status: 0 if every request got its whole answer and nothing grew: p99 TBT of the last window
within 10 % of the first, descriptors and memory flat after the first window's warm-up; else 1.

  orcastream bench soak --minutes 60 --window 10 --load 0.7 --json soak.json
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream import demo
from orcastream.bench.figures.json_file import write_json
from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.flags import Parser, above_zero, at_least, check_outputs, draw_workload
from orcastream.bench.serve.client import Client
from orcastream.bench.serve.loops import Stop, closed_loop, open_loop
from orcastream.bench.site import Site, ready_site
from orcastream.bench.soak.windows import Window, Windows, shortcomings
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest
from orcastream.cli.errors import UserError

_SAMPLE_S = 5.0
_RETENTION_S = 60


def main(arguments: Sequence[str]) -> int:
    """Run, print and judge; return the exit status."""
    options = parse(arguments)
    check_outputs(options)
    capacity, windows = asyncio.run(_run(options))
    Console(width=120, highlight=False).print(_table(windows, options, capacity))
    complaints = shortcomings(windows)
    if options.json:
        figures = {"capacity_requests_per_s": capacity, "windows": [one.to_json() for one in windows]}
        write_json(options.json, {**figures, "shortcomings": complaints})
    for complaint in complaints:
        print(f"orcastream bench soak: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


async def _run(options: argparse.Namespace) -> tuple[float, list[Window]]:
    async with _site(options) as (site, client):
        capacity = await capacity_of(client, options)
        windows = Windows(time.monotonic(), options.window * 60)
        outcomes: list[Outcome] = []
        watching = asyncio.create_task(_watch(site, outcomes, windows))
        requests = _arriving(options, capacity * options.load)
        await open_loop(client, requests, outcomes, Stop())
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        windows.take(outcomes)
        return capacity, windows.whole


@asynccontextmanager
async def _site(options: argparse.Namespace) -> AsyncIterator[tuple[Site, Client]]:
    model = options.model or str(demo.MODEL_DIR)
    shared = {"model": model, "retention_s": _RETENTION_S}
    async with (
        ready_site(model, workers=options.workers, worker=shared, gateway=shared) as (site, name),
        Client(site.url, name) as client,
    ):
        yield site, client


async def capacity_of(client: Client, options: argparse.Namespace) -> float:
    """Return the requests per second of clients without pauses. Raises UserError if they get no answer."""
    outcomes: list[Outcome] = []
    begun_s = time.monotonic()
    requests, duration_s = _endless(options, "capacity"), options.capacity_seconds
    await closed_loop(client, requests, outcomes, Stop(), concurrency=options.clients, duration_s=duration_s)
    if not (complete := sum(outcome.complete for outcome in outcomes)):
        raise UserError(f"capacity: no request was answered: {outcomes[0].error}")
    return complete / (time.monotonic() - begun_s)


def _endless(options: argparse.Namespace, purpose: str) -> Iterator[SampleRequest]:
    """Yield the workload of one seed after another. Prompts are temporary: nothing of an hour's load is kept."""
    rng = Random(f"{purpose} {options.seed}")
    while True:
        draw = Draw(
            vocab_size=options.vocab_size,
            seed=rng.getrandbits(32),
            requests=WORKLOADS[options.workload].requests,
            rate=None,
            burstiness=1.0,
            length_scale=1.0,
        )
        yield from draw_workload(options, draw)


def _arriving(options: argparse.Namespace, rate: float) -> Iterator[SampleRequest]:
    """Yield requests at random times, `rate` per second on average, until the time is over."""
    rng, at_s = Random(f"arrivals {options.seed}"), 0.0
    for request in _endless(options, "load"):
        at_s += rng.expovariate(rate)
        if at_s >= options.minutes * 60:
            return
        yield replace(request, arrival_s=at_s)


async def _watch(site: Site, outcomes: list[Outcome], windows: Windows) -> None:
    """Assign ended requests to their windows, and sample the processes."""
    while True:
        windows.take(outcomes)
        windows.look(site.pids())
        await asyncio.sleep(_SAMPLE_S)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UserError."""
    parser = Parser("soak", __doc__)
    single = [name for name, workload in WORKLOADS.items() if name in ("equal_size", "orca_trace", "heavy_tail")]
    parser.add_argument("--minutes", type=above_zero, default=60.0, help="duration of the load (%(default)g)")
    parser.add_argument("--window", type=above_zero, default=10.0, metavar="MINUTES", help="(%(default)g)")
    parser.add_argument("--load", type=above_zero, default=0.7, help="share of the capacity (%(default)g)")
    parser.add_argument(
        "--capacity-seconds", type=above_zero, default=60.0, help="duration of its measurement (%(default)g)"
    )
    parser.add_argument("--clients", type=at_least(1), default=32, help="clients that measure it (%(default)s)")
    parser.add_argument("--workers", type=at_least(1), default=1, help="worker processes (%(default)s)")
    parser.add_argument("--model", metavar="DIR", help="model (the demo model)")
    parser.add_argument("--workload", choices=single, default="orca_trace", help="(%(default)s)")
    parser.add_argument("--vocab-size", type=at_least(2), default=1000, help="token ids are below it (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, times in milliseconds")
    parser.set_defaults(only_tenant=None)
    options = parser.parse_args(list(arguments))
    if options.minutes < 2 * options.window:
        parser.error(f"--minutes: got {options.minutes:g}, allowed: at least two windows of {options.window:g}")
    return options


def _table(windows: Sequence[Window], options: argparse.Namespace, capacity: float) -> Table:
    title = f"{options.load:.0%} of a capacity of {capacity:.1f} requests/s, {options.workload}"
    table = Table(box=box.SIMPLE, pad_edge=False, title=title, title_justify="left")
    headings = ("minutes", "requests", "failed", "TTFT p50 / p99 ms", "TBT p50 / p99 ms", "memory MiB", "descriptors")
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in windows:
        ttft, tbt = one.spread(one.ttfts_s), one.spread(one.gaps_s)
        table.add_row(
            f"{one.begin_s / 60:g} – {one.end_s / 60:g}",
            *(f"{one.complete:,}", f"{one.failed:,}"),
            *(f"{spread.p50 * 1000:.1f} / {spread.p99 * 1000:.1f}" if spread else "–" for spread in (ttft, tbt)),
            ", ".join(f"{name} {peak / 2**20:.0f}" for name, peak in one.memory_bytes.items()),
            ", ".join(f"{name} {peak}" for name, peak in one.descriptors.items()),
        )
    return table
