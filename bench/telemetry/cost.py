"""Measure the cost of telemetry.

Throughput: two workers share one engine in this process, and telemetry observes one of them. They alternate on a batch
of requests directly from the queue; each round gives one ratio. Exports happen in any round: the CPU time of their
threads is measured, and all of it is charged to the rounds with telemetry. Time to first token: two sites, each with a
Redis, a gateway and one worker, one of which exports, alternate on sequential requests over HTTP. Each pair of sites
gives one difference, and then both are restarted, because two processes differ throughout their life by more than
telemetry costs. Traces are sampled, metrics are on, and the collector is a separate process.
Exit status: 0 if the medians are within the goals, else 1.
"""

import argparse
import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.figures.json_file import write_json
from orcastream.bench.flags import Parser, above_zero, at_least, check_outputs
from orcastream.bench.redis.own_redis import own_redis
from orcastream.bench.serve.client import Client
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.bench.site import ready_site
from orcastream.bench.workloads import SampleRequest
from orcastream.telemetry.setup import start_telemetry

MOST_THROUGHPUT_LOST = 0.02
MOST_TTFT_ADDED_S = 0.001
_QUESTION = SampleRequest("What is 3 + 4?", max_tokens=4)
_TURNS = 4
"""Number of turns of each of the two sites."""


@dataclass(frozen=True)
class Pair:
    """A figure without telemetry, and the same figure with it."""

    off: float
    on: float


@dataclass(frozen=True)
class Cost:
    """Output tokens per second of each round, and median seconds to the first token of each pair of sites."""

    throughput: list[Pair]
    ttft_s: list[Pair]
    export_share: float
    """CPU time of the exporters' threads divided by the time of the rounds with telemetry."""

    @property
    def ratios(self) -> list[float]:
        """Throughput with telemetry, including exports, divided by throughput without."""
        return [pair.on / pair.off * (1 - self.export_share) for pair in self.throughput]

    @property
    def added_s(self) -> list[float]:
        """Seconds that telemetry adds to the time to first token."""
        return [pair.on - pair.off for pair in self.ttft_s]


async def measure(options: argparse.Namespace) -> tuple[Cost, int, int]:
    """Return the cost, and the numbers of spans and data points that the collector received."""
    sink = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orcastream.bench.telemetry.otlp_sink"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert sink.stdin is not None
    assert sink.stdout is not None
    variables = _exporting(int(await sink.stdout.readline()), options)
    ttft_s = [await _ttft_s(variables, options, number) for number in range(options.pairs)]
    throughput, export_share = await _throughput(variables, options)
    sink.stdin.close()
    spans, points = map(int, (await sink.stdout.readline()).split())
    await sink.wait()
    return Cost(throughput, ttft_s, export_share), spans, points


async def _throughput(variables: Mapping[str, str], options: argparse.Namespace) -> tuple[list[Pair], float]:
    """Return the rates of each round, and the exporters' share."""
    from orcastream.bench.telemetry.observed import one_engine  # it loads torch, for which --help need not wait

    os.environ.update(variables)
    telemetry = start_telemetry("orcastream-worker", "bench")
    exporters = [thread for thread in threading.enumerate() if thread.name.startswith("Otel")]
    rounds: list[Pair] = []
    exported_s = 0.0
    async with own_redis(None) as (url, _), one_engine(url) as (off, on):
        for number in range(-1, options.rounds):
            if number == 0:
                exported_s = -_cpu_s(exporters)
            order = (off, on) if number % 2 else (on, off)
            rates = {one: await one.throughput(options.requests, options.tokens) for one in order}
            if number >= 0:  # the first round warms everything up
                rounds.append(Pair(rates[off], rates[on]))
        exported_s += _cpu_s(exporters)
    telemetry.shut_down()
    tokens = options.requests * options.tokens
    return rounds, exported_s / sum(tokens / pair.on for pair in rounds)


def _cpu_s(threads: Sequence[threading.Thread]) -> float:
    """Return the CPU time so far of these threads, all of which are alive."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads if thread.ident)


async def _ttft_s(variables: Mapping[str, str], options: argparse.Namespace, number: int) -> Pair:
    """Return the median times of two fresh sites."""
    disabled = {"OTEL_SDK_DISABLED": "true"}
    times: dict[bool, list[float]] = {False: [], True: []}
    order = (False, True) if number % 2 else (True, False)
    async with _client(variables if order[0] else disabled) as one, _client(variables if order[1] else disabled) as two:
        for turn in range(-1, _TURNS):
            for is_on, client in zip(order, (one, two), strict=True):
                took = [await _first_token_s(client) for _ in range(max(1, options.http_requests // _TURNS))]
                times[is_on] += took if turn >= 0 else []
    return Pair(statistics.median(times[False]), statistics.median(times[True]))


async def _first_token_s(client: Client) -> float:
    outcome = await client.ask(_QUESTION)
    if outcome.ttft_s is None or not outcome.complete:
        raise RuntimeError(f"a request failed: {outcome.error}")
    return outcome.ttft_s


def _exporting(port: int, options: argparse.Namespace) -> dict[str, str]:
    return {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(options.sampled),
        "OTEL_METRIC_EXPORT_INTERVAL": str(int(options.interval * 1000)),
    }


@asynccontextmanager
async def _client(environment: Mapping[str, str]) -> AsyncIterator[Client]:
    """Yield a client of its own site."""
    async with ready_site(DEMO_MODEL, environment=environment) as (site, _), Client(site.url, DEMO_MODEL) as client:
        yield client


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parse(arguments)
    check_outputs(options)
    cost, spans, points = asyncio.run(measure(options))
    _print(cost, f"the collector received {spans:,} spans and {points:,} data points")
    if options.json:
        figures = {**asdict(cost), "spans": spans, "points": points}
        write_json(options.json, figures)
    slowed = statistics.median(cost.ratios) < 1 - MOST_THROUGHPUT_LOST
    delayed = statistics.median(cost.added_s) > MOST_TTFT_ADDED_S
    return 1 if slowed or delayed else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("telemetry-cost", __doc__)
    parser.add_argument(
        "--rounds", type=at_least(2), default=20, help="rounds of both workers, for throughput (%(default)s)"
    )
    parser.add_argument(
        "--pairs", type=at_least(2), default=10, help="pairs of sites, for the time to first token (%(default)s)"
    )
    parser.add_argument(
        "--requests", type=at_least(1), default=64, help="requests posted at once for throughput (%(default)s)"
    )
    parser.add_argument("--tokens", type=at_least(1), default=96, help="output tokens of each request (%(default)s)")
    parser.add_argument(
        "--http-requests", type=at_least(1), default=40, help="sequential requests to each site (%(default)s)"
    )
    parser.add_argument("--sampled", type=float, default=0.05, help="share of traces sampled (%(default)s)")
    parser.add_argument(
        "--interval", type=above_zero, default=10.0, help="seconds between metric exports (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(list(arguments))
    for name, least in (("rounds", 2), ("pairs", 2), ("requests", 1), ("tokens", 1), ("http_requests", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(options, name)}, allowed: at least {least}")
    return options


def _print(cost: Cost, received: str) -> None:
    title = f"{len(cost.throughput)} rounds, {len(cost.ttft_s)} pairs of sites; {received}"
    table = Table(box=box.SIMPLE, pad_edge=False, title=title, title_justify="left")
    for heading in ("", "off", "on", "median", "quartiles", "goal"):
        table.add_column(heading, justify="right")
    table.add_row(
        *("throughput, tokens/s", *_medians(cost.throughput, lambda rate: f"{rate:,.0f}")),
        *(f"{statistics.median(cost.ratios) - 1:+.2%}", _quartiles(cost.ratios, lambda ratio: f"{ratio - 1:+.2%}")),
        f"{-MOST_THROUGHPUT_LOST:+.0%}",
    )
    table.add_row(
        *("time to first token, ms", *_medians(cost.ttft_s, lambda seconds: f"{seconds * 1000:.2f}")),
        f"{statistics.median(cost.added_s) * 1000:+.2f}",
        _quartiles(cost.added_s, lambda added: f"{added * 1000:+.2f}"),
        f"{MOST_TTFT_ADDED_S * 1000:+.0f}",
    )
    console = Console(width=120)
    console.print(table)
    console.print(f"Exports took {cost.export_share:.2%} of a core while telemetry was on; the ratios include that.")


def _medians(pairs: Sequence[Pair], shown: Callable[[float], str]) -> tuple[str, str]:
    return shown(statistics.median(pair.off for pair in pairs)), shown(statistics.median(pair.on for pair in pairs))


def _quartiles(values: Sequence[float], shown: Callable[[float], str]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{shown(low)} … {shown(high)}"
