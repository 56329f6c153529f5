"""Overload the service by several times its capacity for a while, and measure which requests are served in time.

Runs its own site with default settings and one worker. First, enough clients to keep it busy measure its capacity. Then
follow three phases of Poisson arrivals: half the capacity, a multiple of it, and half again. Every request has a
deadline. Accepted requests should meet it, refusals should be immediate, and after the overload the service should
perform as before.
Exit status: 0 if every goal is met, else 1.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from orcastream.bench.arrivals import poisson
from orcastream.bench.figures.json_file import write_json
from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.flags import Parser, above_zero, at_least, check_outputs
from orcastream.bench.overload.client import LeanClient
from orcastream.bench.overload.report import Report
from orcastream.bench.serve.http_pool import HttpPool
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.bench.site import ready_site
from orcastream.bench.workloads import SampleRequest
from orcastream.cli.errors import UserError

_CLIENTS = 48
"""Enough clients to fill a default batch (32) with some requests waiting."""
_NORMAL_LOAD = 0.5
_FIRST_TOKEN_ID = 20
"""The demo model's special tokens are below this id."""
_LAST_TOKEN_ID = 1000


class Asking:
    """A source of requests of one shape, from a seed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._rng = random.Random(options.seed)
        self._prompt_tokens, self._tokens = options.prompt, options.tokens

    def arriving(self, rate: float, duration_s: float) -> list[SampleRequest]:
        """Return the requests of a phase, drawn before it begins."""
        return [self.one(arrival_s) for arrival_s in list(poisson(rate, duration_s, self._rng))]

    def one(self, arrival_s: float = 0.0) -> SampleRequest:
        """Return the next request."""
        prompt = self._rng.choices(range(_FIRST_TOKEN_ID, _LAST_TOKEN_ID), k=self._prompt_tokens)
        return SampleRequest(tuple(prompt), max_tokens=self._tokens, arrival_s=arrival_s)


async def measure(options: argparse.Namespace) -> Report:
    """Run once on its own site."""
    async with ready_site(DEMO_MODEL) as (site, _), HttpPool(site.url) as http:
        return await stretches(LeanClient(http, DEMO_MODEL, options.deadline), options)


async def stretches(client: LeanClient, options: argparse.Namespace) -> Report:
    """Measure the capacity and run the three phases. Raises UserError if there is no capacity."""
    asking, console = Asking(options), Console(stderr=True)
    capacity = await _capacity(client, asking, options.capacity_seconds)
    console.print(f"capacity: {capacity:.2f} requests/s")
    before = asking.arriving(_NORMAL_LOAD * capacity, options.normal_seconds)
    overload = asking.arriving(options.times * capacity, options.seconds)
    after = asking.arriving(_NORMAL_LOAD * capacity, options.normal_seconds + options.deadline)
    for flag, seconds, requests in (
        ("--normal-seconds", options.normal_seconds, before and after),
        ("--seconds", options.seconds, overload),
    ):
        if not requests:
            raise UserError(f"{flag}: got {seconds:g}, allowed: more, because no request arrives in that time")
    normal = await _stretch(client, before)
    console.print(f"normal load: {len(normal)} requests")
    overloaded = asyncio.create_task(_stretch(client, overload))
    recovery_s = time.monotonic() + options.seconds
    await asyncio.sleep(options.seconds)
    back = await _stretch(client, after)
    return Report(capacity, normal, await overloaded, back, options.deadline, recovery_s)


async def _stretch(client: LeanClient, requests: Sequence[SampleRequest]) -> list[Outcome]:
    """Send each request at its arrival; return the outcomes in that order."""
    begun_s = time.monotonic()
    asked = []
    for request in requests:
        due_s = begun_s + request.arrival_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        asked.append(asyncio.create_task(client.ask(request, due_s)))
    return await asyncio.gather(*asked)


async def _capacity(client: LeanClient, asking: Asking, duration_s: float) -> float:
    """Return the answers per second of busy clients, in the second half of that time. Raises UserError for none."""
    begun_s, outcomes = time.monotonic(), list[Outcome]()
    half_s, end_s = begun_s + duration_s / 2, begun_s + duration_s

    async def one_after_another() -> None:
        while time.monotonic() < end_s:
            outcomes.append(await client.ask(asking.one(), time.monotonic()))

    await asyncio.gather(*(one_after_another() for _ in range(_CLIENTS)))
    ended = [outcome.ended_s for outcome in outcomes if outcome.ended_s is not None]
    answers = sum(half_s <= one < end_s for one in ended)
    if not answers:
        why = next((outcome.error for outcome in outcomes if outcome.error), "it takes longer")
        raise UserError(f"capacity: no request was answered in the second half of --capacity-seconds: {why}")
    return answers / (end_s - half_s)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    options = parse(arguments)
    check_outputs(options)
    report = asyncio.run(measure(options))  # it starts processes, which uvloop cannot do through the supervisor
    print(report.summary())
    if options.json:
        write_json(options.json, report.figures())
    for complaint in (complaints := report.failed()):
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UserError."""
    parser = Parser("overload", __doc__)
    parser.add_argument(
        "--times", type=above_zero, default=5.0, help="overload as a multiple of the capacity (%(default)s)"
    )
    parser.add_argument("--seconds", type=above_zero, default=60.0, help="duration of the overload (%(default)s)")
    parser.add_argument(
        "--deadline", type=above_zero, default=20.0, help="deadline of every request, seconds (%(default)s)"
    )
    parser.add_argument("--prompt", type=at_least(1), default=32, help="tokens per prompt (%(default)s)")
    parser.add_argument("--tokens", type=at_least(1), default=200, help="tokens per answer (%(default)s)")
    parser.add_argument(
        "--capacity-seconds", type=above_zero, default=16.0, help="duration of its measurement (%(default)s)"
    )
    parser.add_argument("--normal-seconds", type=above_zero, default=10.0, help="duration of half load (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of prompts and arrivals (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(list(arguments))
