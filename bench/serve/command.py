"""Load a gateway over HTTP and report what its clients saw.

With --rate, requests arrive as a random process, independent of earlier answers (open loop); with --concurrency, each
client sends one request after another (closed loop); with neither, the workload defines the arrivals. --sweep
alternates between several loads, repeat by repeat. A workload asks for exact numbers of tokens; --questions asks in
text and counts the exactly correct answers. The first SIGINT or SIGTERM ends the load and waits for running answers;
the second ends everything. Exit status: 0 if every request got its whole answer, 1 if one did not, 2 if the gateway or
the arguments are unusable.

  orcastream bench serve --workload orca_trace --rate 2 --mix realtime=0.2,normal=0.8
  orcastream bench serve --workload orca_trace --sweep rate=0.5,1,2,4 --plot curve.svg
  orcastream bench serve --questions demo --concurrency 8 --duration 60 --require-exact
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from orcastream.bench.figures.machine import command_line
from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.figures.progress import RunBars
from orcastream.bench.figures.result import Result, Variant
from orcastream.bench.figures.tables import show
from orcastream.bench.flags import (
    Parser,
    above_zero,
    add_result_flags,
    add_workload_flags,
    at_least,
    check_limit,
    check_outputs,
    objectives,
    zero_or_more,
)
from orcastream.bench.serve.client import Client
from orcastream.bench.serve.gateway import served_model
from orcastream.bench.serve.load import Load, read_loads
from orcastream.bench.serve.loops import Stop, closed_loop, open_loop
from orcastream.bench.serve.mix import Mix, read_keys, read_shares
from orcastream.bench.serve.questions import DEMO_MODEL, MIXES
from orcastream.bench.serve.report import Report
from orcastream.bench.serve.requests import RequestSource
from orcastream.cli.command import warn
from orcastream.cli.errors import UserError

_WATCH_S = 0.5
_OF_A_WORKLOAD = ("--workload", "--length-scale", "--only-tenant", "--vocab-size")


def main(arguments: Sequence[str]) -> int:
    """Run the load that the command line describes; return the exit status."""
    options = parse(arguments)
    check_outputs(options)
    try:
        bench = ServeBench(options)
        uvloop.run(bench.run())
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    except asyncio.CancelledError:
        return 130
    result = bench.result(command_line("serve", arguments))
    show(result, Console(width=110, highlight=False))
    if options.json:
        result.save(options.json)
    if options.plot and result.measured:
        from orcastream.bench.figures.plot import draw

        draw(result, options.plot)
    for complaint in bench.complaints:
        print(f"orcastream bench serve: {complaint}", file=sys.stderr)
    return 1 if bench.complaints else 0


class ServeBench:
    """Loads that alternate on one gateway."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._objectives = objectives(options)
        self._mix = Mix(read_shares("--mix", options.mix), read_shares("--tenant-mix", options.tenant_mix))
        self._tenant_keys = read_keys(options.tenant_key)
        self._source = RequestSource(options, self._mix)
        self._source.check()  # before the wait for a gateway
        self._loads = read_loads(options)
        self._variants = [Variant(load.name, load.to_json(), "gateway", load.swept) for load in self._loads]
        self._stop: Stop
        self._model = ""
        self.complaints: list[str] = []

    async def run(self) -> None:
        """Run all repeats of all loads, or until a signal."""
        options = self._options
        served = await served_model(
            options.url, api_key=self._some_key(), patience_s=options.patience, on_wait=self._tell_of_waiting
        )
        self._model = options.model or served
        if options.questions and not options.prompts and self._model != DEMO_MODEL:
            raise UserError(f"--questions: the gateway serves {self._model}; they are for {DEMO_MODEL}: --prompts FILE")
        async with Client(
            options.url,
            self._model,
            api_key=options.api_key,
            tenant_keys=self._tenant_keys,
            objectives=self._objectives,
            timeout_s=options.timeout,
        ) as client:
            for request in self._source.warm_up(options.warmup):
                await client.ask(request)
            self._stop = Stop()
            _stop_on_signals(self._stop)
            with RunBars(options.repeats * len(self._loads)) as bars:
                await self._measure(client, bars)
        if not any(variant.runs for variant in self._variants):
            self.complaints.append("no request was made")

    async def _measure(self, client: Client, bars: RunBars) -> None:
        for _ in range(self._options.repeats):
            for load, variant in zip(self._loads, self._variants, strict=True):
                if self._stop:
                    return
                report = await self._once(client, load, bars)
                if not report.outcomes:
                    continue
                variant.runs.append(report.figures(self._objectives))
                options = self._options
                self.complaints += report.failed(
                    allow_refusals=options.allow_refusals, require_exact=options.require_exact
                )

    async def _once(self, client: Client, load: Load, bars: RunBars) -> Report:
        outcomes: list[Outcome] = []
        requests, count = self._source.requests(load)
        bars.begin(load.name, count)
        watching = asyncio.create_task(_watch(bars, outcomes))
        begun_s = time.monotonic()
        try:
            if load.is_closed:
                await closed_loop(
                    client, requests, outcomes, self._stop,
                    concurrency=load.concurrency or 1, duration_s=load.duration_s,
                )  # fmt: skip
            else:
                await open_loop(client, requests, outcomes, self._stop, concurrency=load.concurrency)
        finally:
            watching.cancel()
            bars.end()
        return Report(outcomes, begun_s, min(begun_s + load.duration_s, time.monotonic()))

    def result(self, command: str) -> Result:
        """Return the result so far."""
        options = self._options
        shown = ("requests", "rate", "concurrency", "duration", "burstiness", "length_scale", "seed", "mix")
        workload = {
            "name": self._source.name,
            **{name: getattr(options, name) for name in shown},
            **{name: getattr(options, name) for name in ("tenant_mix", "only_tenant", "ttft_slo_ms", "tbt_slo_ms")},
        }
        model = {"name": self._model, "gateway": options.url}
        return Result(command, model, workload, self._variants, latency_limit_ms=options.latency_limit_ms)

    def _tell_of_waiting(self, reason: str) -> None:
        warn("orcastream bench serve", f"waiting up to {self._options.patience:g} s for {self._options.url}: {reason}")

    def _some_key(self) -> str | None:
        return self._options.api_key or next(iter(self._tenant_keys.values()), None)


async def _watch(bars: RunBars, outcomes: Sequence[Outcome]) -> None:
    while True:
        bars.update(len(outcomes))
        await asyncio.sleep(_WATCH_S)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UserError."""
    parser = Parser("serve", __doc__)
    gateway = parser.add_argument_group("gateway")
    gateway.add_argument("--url", default="http://127.0.0.1:8000", help="(%(default)s)")
    gateway.add_argument(
        "--api-key", default=os.environ.get("ORCASTREAM_API_KEY"), help="API key (default: ORCASTREAM_API_KEY)"
    )
    gateway.add_argument("--model", help="served name (default: the first that the gateway lists)")
    gateway.add_argument(
        "--timeout", type=above_zero, default=600.0, help="time limit of a request, seconds (%(default)g)"
    )
    gateway.add_argument(
        "--patience", type=zero_or_more, default=60.0, help="time to wait for the gateway, seconds (%(default)g)"
    )
    _add_load_flags(parser)
    add_workload_flags(parser, "orca_trace")
    parser.add_argument(
        "--vocab-size", type=at_least(2), default=1000, help="a workload's token ids are below it (%(default)s)"
    )
    asked = parser.add_argument_group("questions in text, instead of a workload")
    asked.add_argument("--questions", choices=MIXES, help="questions of the demo model")
    asked.add_argument("--prompts", type=Path, help='your own: lines of {"prompt", "answer", "max_tokens"}')
    asked.add_argument(
        "--require-exact", action="store_true", help="an answer that differs from the known one is a failure"
    )
    add_result_flags(parser, repeats=1)
    options = parser.parse_args(list(arguments))
    if options.sweep and (options.rate or options.concurrency):
        parser.error("--sweep: got a load as well, allowed: without --rate and --concurrency")
    given = {argument.partition("=")[0] for argument in arguments}
    _check_flags(parser, given)
    check_limit(options)
    return options


def _check_flags(parser: argparse.ArgumentParser, given: set[str]) -> None:
    """Raise UserError for flags that would have no effect in combination with the others."""
    if {"--questions", "--prompts"} <= given:
        parser.error("--questions: got --prompts as well, allowed: one of them")
    if {"--questions", "--prompts"} & given:
        for flag in _OF_A_WORKLOAD:
            if flag in given:
                parser.error(f"{flag}: got questions in text, allowed: with a workload")
    elif "--require-exact" in given:
        parser.error("--require-exact: got a workload, allowed: with --questions or --prompts")


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=at_least(1),
        help="closed loop: clients; with --rate: maximum concurrent requests (no limit)",
    )
    load.add_argument("--duration", type=above_zero, metavar="S", help="seconds of load (default: to the last request)")
    load.add_argument("--sweep", metavar="rate=R,R...", help="rates, or numbers of clients: concurrency=C,C...")
    load.add_argument("--mix", metavar="CLASS=SHARE,...", help="priority classes, drawn by share (the workload's)")
    load.add_argument("--tenant-mix", metavar="NAME=SHARE,...", help="tenants, drawn by share (the workload's)")
    load.add_argument(
        "--tenant-key", action="append", default=[], metavar="NAME=KEY", help="a tenant's API key; repeatable"
    )
    load.add_argument("--allow-refusals", action="store_true", help="429 is not a failure")


def _stop_on_signals(stop: Stop) -> None:
    loop, running = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop and running is not None:
            running.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
