"""Load a gateway and report what its clients saw: `python -m bench.serve.command --rate 5 --duration 60`.

With --rate requests arrive as a Poisson process, whether or not earlier answers have come (open loop); without it
--concurrency clients ask one question after another (closed loop). The first SIGINT or SIGTERM ends the load and waits
for the answers under way, the second ends everything. Exit status: 0 where every request got its whole answer, 1 where
one did not, 2 where the gateway or the arguments cannot be used.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.arrivals import poisson
from bench.serve.client import Client
from bench.serve.loops import Stop, closed_loop, open_loop
from bench.serve.gateway import GatewayUnavailable, served_model
from bench.figures.outcome import Outcome
from bench.serve.report import Report
from bench.serve.questions import DEMO_MODEL, MIXES, Workload, from_file

UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load that the command line describes; returns the exit status."""
    options = _parse(arguments)
    try:
        workload = _workload(options)
        report = asyncio.run(_run(options, workload))
    except (GatewayUnavailable, ValueError, OSError) as error:
        print(f"bench.serve.command: {error}", file=sys.stderr)
        return UNUSABLE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    console = Console(width=100, highlight=False)
    console.print(report.table())
    console.print(report.summary())
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    complaints = report.failed(allow_refusals=options.allow_refusals, require_exact=options.require_exact)
    for complaint in complaints:
        print(f"bench.serve.command: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.serve.command", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gateway", default="http://127.0.0.1:8000", help="URL (%(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("ORCASTREAM_API_KEY"), help="or ORCASTREAM_API_KEY")
    parser.add_argument("--model", help="served name (the first that the gateway lists)")
    parser.add_argument("--rate", type=float, help="open loop: requests per second")
    parser.add_argument(
        "--concurrency", type=int, help="closed loop: clients (8); open loop: most requests under way (no bound)"
    )
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of load (%(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and questions (%(default)s)")
    parser.add_argument("--mix", choices=MIXES, default="demo", help="questions of the demo model (%(default)s)")
    parser.add_argument(
        "--prompts", type=Path, help='own questions instead: lines of {"prompt", "answer", "max_tokens"}'
    )
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds until a client gives up (%(default)g)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for the gateway (%(default)g)")
    parser.add_argument("--allow-refusals", action="store_true", help="429 for a full queue is no failure")
    parser.add_argument("--require-exact", action="store_true", help="an answer that is not the known one is a failure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, times in seconds")
    options = parser.parse_args(arguments)
    for name in ("rate", "concurrency", "duration", "timeout"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            parser.error(f"--{name}: got {value}, allowed: more than 0 and finite")
    return options


def _workload(options: argparse.Namespace) -> Workload:
    return from_file(options.prompts, options.seed) if options.prompts else MIXES[options.mix](options.seed)


async def _run(options: argparse.Namespace, workload: Workload) -> Report:
    stop = Stop()
    _stop_on_signals(stop)
    served = await served_model(options.gateway, api_key=options.api_key, patience_s=options.patience)
    model = options.model or served
    if model != DEMO_MODEL and not options.prompts:
        raise ValueError(f"--prompts: the gateway serves {model}; the mixes are for {DEMO_MODEL}: name a file")
    outcomes: list[Outcome] = []
    async with Client(options.gateway, model, api_key=options.api_key, timeout_s=options.timeout) as client:
        begun_s = time.monotonic()
        if options.rate:
            arrivals = poisson(options.rate, options.duration, random.Random(f"arrivals {options.seed}"))
            await open_loop(client, workload, arrivals, outcomes, stop, concurrency=options.concurrency)
        else:
            await closed_loop(
                client,
                workload,
                concurrency=options.concurrency or 8,
                duration_s=options.duration,
                outcomes=outcomes,
                stop=stop,
            )
    return Report(outcomes, begun_s, min(begun_s + options.duration, time.monotonic()))


def _stop_on_signals(stop: Stop) -> None:
    loop, running = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop and running is not None:
            running.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


if __name__ == "__main__":
    sys.exit(main())
