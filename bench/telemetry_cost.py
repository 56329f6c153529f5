"""Measure what telemetry costs: `python -m bench.telemetry_cost`.

Two sites live side by side, each with a Redis, a gateway and one worker; one of them exports traces, sampled, and
metrics to a collector in a process of its own. They take turns, and only one of them works at a time: each round asks
both for throughput (a batch of requests straight from the queue, so that no client competes for the cores) and for the
time to first token over HTTP, one request after another; the order is the other way round in every second round. Of
each round comes one ratio and one difference; given are their median, quartiles, and how many rounds there were.
Exit status: 0 where the medians keep within the goals, 1 where one does not.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.client import Client
from bench.gateway import served_model
from bench.site import Site
from bench.workload import DEMO_MODEL, Question
from broker.link import Link
from broker.queue import RequestQueue
from schemas.keys import Keys
from schemas.request import GenerationRequest, parse_payload

MOST_THROUGHPUT_LOST = 0.02
MOST_TTFT_ADDED_S = 0.001
_PROMPT = tuple(range(20, 52))
_DEADLINE_MS = 600_000
_POLL_S = 0.005
_PATIENCE_S = 180.0
_QUESTION = Question("What is 3 + 4?", max_tokens=4)


@dataclass(frozen=True)
class Round:
    """One round of both sites: output tokens per second, and median time to first token in seconds."""

    tokens_per_s_off: float
    tokens_per_s_on: float
    ttft_s_off: float
    ttft_s_on: float

    @property
    def throughput_ratio(self) -> float:
        """On to off; below 1 telemetry costs throughput."""
        return self.tokens_per_s_on / self.tokens_per_s_off

    @property
    def ttft_added_s(self) -> float:
        """On minus off."""
        return self.ttft_s_on - self.ttft_s_off


class Measured:
    """One of the two sites, ready to work."""

    def __init__(self, site: Site, link: Link, client: Client) -> None:
        self._keys = Keys(DEMO_MODEL)
        self._queue = RequestQueue(link, self._keys)
        self._client = client
        self._count = 0
        self.site = site

    async def throughput(self, requests: int, tokens: int) -> float:
        """Output tokens per second of `requests` that are posted at once, from the first post to the last end."""
        begun_s = time.monotonic()
        for _ in range(requests):
            self._count += 1
            payload = parse_payload({"prompt": _PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0})
            deadline_ms = int(time.time() * 1000) + _DEADLINE_MS
            request = GenerationRequest(f"cost-{self._count}", payload, deadline_ms)
            await self._queue.enqueue(request, bound=None, retention_ms=1000)
        await _until(self._is_empty)
        return requests * tokens / (time.monotonic() - begun_s)

    async def _is_empty(self) -> bool:
        return await self._queue.depth() == 0

    async def ttft_s(self, requests: int) -> float:
        """Median time to first token of requests that come one after another; RuntimeError where one fails."""
        times = []
        for _ in range(requests):
            outcome = await self._client.ask(_QUESTION)
            if outcome.ttft_s is None or not outcome.complete:
                raise RuntimeError(f"a request failed: {outcome.error}")
            times.append(outcome.ttft_s)
        return statistics.median(times)


async def measure(options: argparse.Namespace) -> tuple[list[Round], int, int]:
    """The rounds, and the spans and data points that the collector got."""
    sink = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.otlp_sink"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert sink.stdin is not None
    assert sink.stdout is not None
    port = int(await sink.stdout.readline())
    rounds: list[Round] = []
    async with _measured({"OTEL_SDK_DISABLED": "true"}, 0.0) as off, _measured(_exporting(port, options), 0.001) as on:
        for number in range(-1, options.rounds):
            took = await _round((off, on) if number % 2 else (on, off), options)
            if number >= 0:  # the first one warms everything up
                rounds.append(Round(took[off][0], took[on][0], took[off][1], took[on][1]))
    sink.stdin.close()
    spans, points = map(int, (await sink.stdout.readline()).split())
    await sink.wait()
    return rounds, spans, points


def _exporting(port: int, options: argparse.Namespace) -> dict[str, str]:
    return {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(options.sampled),
        "OTEL_METRIC_EXPORT_INTERVAL": str(int(options.interval * 1000)),
    }


async def _round(order: Sequence[Measured], options: argparse.Namespace) -> Mapping[Measured, tuple[float, float]]:
    rates = {one: await one.throughput(options.requests, options.tokens) for one in order}
    waits = {one: await one.ttft_s(options.http_requests) for one in order}
    return {one: (rates[one], waits[one]) for one in order}


async def _until(done: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await done():
            return
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _measured(environment: Mapping[str, str], iteration_trace_ratio: float) -> AsyncIterator[Measured]:
    with tempfile.TemporaryDirectory(prefix="orcastream-bench-") as directory:
        site = Site(
            Path(directory),
            DEMO_MODEL,
            lambda *_: None,
            worker={"iteration_trace_ratio": iteration_trace_ratio},
            gateway={},
            drain_grace_s=1.0,
            environment=environment,
        )
        try:
            await site.start()
            await site.scale_to(1)
            await served_model(site.url, patience_s=_PATIENCE_S)
            link = await Link.open(site.redis_url, name="bench")
            async with Client(site.url, DEMO_MODEL) as client:
                yield Measured(site, link, client)
            await link.close()
        finally:
            await site.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    options = _parse(arguments)
    rounds, spans, points = asyncio.run(measure(options))
    ratios = [one.throughput_ratio for one in rounds]
    added_s = [one.ttft_added_s for one in rounds]
    _print(rounds, ratios, added_s, f"the collector got {spans:,} spans and {points:,} data points")
    if options.json:
        figures = {"rounds": [asdict(one) for one in rounds], "spans": spans, "points": points}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    within = statistics.median(ratios) >= 1 - MOST_THROUGHPUT_LOST and statistics.median(added_s) <= MOST_TTFT_ADDED_S
    return 0 if within else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.telemetry_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12, help="of both sites (%(default)s)")
    parser.add_argument("--requests", type=int, default=96, help="posted at once for throughput (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of each (%(default)s)")
    parser.add_argument("--http-requests", type=int, default=40, help="one after another for TTFT (%(default)s)")
    parser.add_argument("--sampled", type=float, default=0.05, help="share of traces sampled (%(default)s)")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between metric exports (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    for name, least in (("rounds", 2), ("requests", 1), ("tokens", 1), ("http_requests", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(options, name)}, allowed: at least {least}")
    return options


def _print(rounds: Sequence[Round], ratios: Sequence[float], added_s: Sequence[float], received: str) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, title=f"{len(rounds)} rounds; {received}", title_justify="left")
    for heading in ("", "off", "on", "median", "quartiles", "goal"):
        table.add_column(heading, justify="right")
    off, on = ([getattr(one, f"tokens_per_s_{name}") for one in rounds] for name in ("off", "on"))
    table.add_row(
        *("throughput, tokens/s", f"{statistics.median(off):,.0f}", f"{statistics.median(on):,.0f}"),
        *(f"{statistics.median(ratios) - 1:+.2%}", _quartiles(ratios, lambda ratio: f"{ratio - 1:+.2%}")),
        f"{-MOST_THROUGHPUT_LOST:+.0%}",
    )
    off, on = ([getattr(one, f"ttft_s_{name}") * 1000 for one in rounds] for name in ("off", "on"))
    table.add_row(
        *("time to first token, ms", f"{statistics.median(off):.2f}", f"{statistics.median(on):.2f}"),
        *(f"{statistics.median(added_s) * 1000:+.2f}", _quartiles(added_s, lambda added: f"{added * 1000:+.2f}")),
        f"{MOST_TTFT_ADDED_S * 1000:+.0f}",
    )
    Console(width=120).print(table)


def _quartiles(values: Sequence[float], shown: Callable[[float], str]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{shown(low)} … {shown(high)}"


if __name__ == "__main__":
    sys.exit(main())
