"""Ask for several times as much as the service can do, for a while, and see who is served in time.

A site of its own, with default settings and one worker. First its capacity: as many clients as keep it busy. Then three
stretches of requests that come when they come (Poisson): half the capacity, a multiple of it, and half again. Every
request has a deadline. What is accepted should meet it, what is refused should be refused at once, and after the
overload the service should be as before.
Exit status: 0 where every goal is met, 1 where one is not.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from orcastream.bench.arrivals import poisson
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
"""Enough to fill a default batch (32) with some waiting."""
_NORMAL_LOAD = 0.5
_FIRST_TOKEN_ID = 20
"""Below are the special tokens of the demo model."""
_LAST_TOKEN_ID = 1000


class Asking:
    """Requests of one shape, from a seed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._rng = random.Random(options.seed)
        self._prompt_tokens, self._tokens = options.prompt, options.tokens

    def arriving(self, rate: float, duration_s: float) -> list[SampleRequest]:
        """Those of a stretch of time, drawn before it begins."""
        return [self.one(arrival_s) for arrival_s in list(poisson(rate, duration_s, self._rng))]

    def one(self, arrival_s: float = 0.0) -> SampleRequest:
        """The next one."""
        prompt = self._rng.choices(range(_FIRST_TOKEN_ID, _LAST_TOKEN_ID), k=self._prompt_tokens)
        return SampleRequest(tuple(prompt), max_tokens=self._tokens, arrival_s=arrival_s)


async def measure(options: argparse.Namespace) -> Report:
    """One run on a site of its own."""
    async with ready_site(DEMO_MODEL) as (site, _), HttpPool(site.url) as http:
        return await stretches(LeanClient(http, DEMO_MODEL, options.deadline), options)


async def stretches(client: LeanClient, options: argparse.Namespace) -> Report:
    """The capacity, and the three stretches. UserError where there is none."""
    asking, console = Asking(options), Console(stderr=True)
    capacity = await _capacity(client, asking, options.capacity_seconds)
    if not capacity:
        raise UserError("capacity: no request was answered in the second half of --capacity-seconds: it takes longer")
    console.print(f"capacity: {capacity:.2f} requests/s")
    normal = await _stretch(client, asking.arriving(_NORMAL_LOAD * capacity, options.normal_seconds))
    console.print(f"normal load: {len(normal)} requests")
    overload = asking.arriving(options.times * capacity, options.seconds)
    after = asking.arriving(_NORMAL_LOAD * capacity, options.normal_seconds + options.deadline)
    overloaded = asyncio.create_task(_stretch(client, overload))
    recovery_s = time.monotonic() + options.seconds
    await asyncio.sleep(options.seconds)
    back = await _stretch(client, after)
    return Report(capacity, normal, await overloaded, back, options.deadline, recovery_s)


async def _stretch(client: LeanClient, requests: Sequence[SampleRequest]) -> list[Outcome]:
    """Ask for each request at its arrival; the outcomes in that order."""
    begun_s = time.monotonic()
    asked = []
    for request in requests:
        due_s = begun_s + request.arrival_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        asked.append(asyncio.create_task(client.ask(request, due_s)))
    return await asyncio.gather(*asked)


async def _capacity(client: LeanClient, asking: Asking, duration_s: float) -> float:
    """Answers per second while more are wanted, of the second half of that time."""
    begun_s, outcomes = time.monotonic(), list[Outcome]()
    half_s, end_s = begun_s + duration_s / 2, begun_s + duration_s

    async def one_after_another() -> None:
        while time.monotonic() < end_s:
            outcomes.append(await client.ask(asking.one(), time.monotonic()))

    await asyncio.gather(*(one_after_another() for _ in range(_CLIENTS)))
    ended = [outcome.ended_s for outcome in outcomes if outcome.ended_s is not None]
    return sum(half_s <= one < end_s for one in ended) / (end_s - half_s)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit status."""
    options = parse(arguments)
    check_outputs(options)
    report = asyncio.run(measure(options))  # it starts processes, which uvloop cannot by way of the supervisor
    print(report.summary())
    if options.json:
        options.json.write_text(json.dumps(report.figures(), indent=1) + "\n", encoding="utf-8")
    for complaint in (complaints := report.failed()):
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags of the command line. UserError."""
    parser = Parser("overload", __doc__)
    parser.add_argument("--times", type=above_zero, default=5.0, help="times the capacity (%(default)s)")
    parser.add_argument("--seconds", type=above_zero, default=60.0, help="how long (%(default)s)")
    parser.add_argument("--deadline", type=above_zero, default=20.0, help="of every request, seconds (%(default)s)")
    parser.add_argument("--prompt", type=at_least(1), default=32, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--tokens", type=at_least(1), default=200, help="tokens of an answer (%(default)s)")
    parser.add_argument("--capacity-seconds", type=above_zero, default=16.0, help="to measure it (%(default)s)")
    parser.add_argument("--normal-seconds", type=above_zero, default=10.0, help="of half the capacity (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(list(arguments))
