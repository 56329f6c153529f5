"""Measure the output tokens per second of one worker at several numbers of streams: `python -m bench.streams`.

Redis, a gateway, one worker with one torch thread and the clients share this machine. Each client asks the demo model
for 600 tokens over HTTP, again and again. The rounds go through all numbers of streams in turn, so that whatever else
the machine does strikes all of them alike.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.client import Client
from bench.clients import Stop, closed_loop
from bench.gateway import GatewayUnavailable, served_model
from bench.outcome import Outcome
from bench.report import Report
from bench.site import Site
from bench.spread import percentile
from bench.workload import DEMO_MODEL, same_length
from cli.errors import UserError

_DRAIN_GRACE_S = 20.0


async def one_round(client: Client, streams: int, seconds: float) -> Report:
    """`streams` clients that ask for 600 tokens each, for so long."""
    outcomes: list[Outcome] = []
    begun_s = time.monotonic()
    await closed_loop(client, same_length(), concurrency=streams, duration_s=seconds, outcomes=outcomes, stop=Stop())
    return Report(outcomes, begun_s, begun_s + seconds)


async def _measure(options: argparse.Namespace) -> dict[int, list[Report]]:
    with tempfile.TemporaryDirectory(prefix="orcastream-bench-") as directory:
        site = Site(Path(directory), DEMO_MODEL, lambda *_: None, worker={}, gateway={}, drain_grace_s=_DRAIN_GRACE_S)
        try:
            await site.start()
            await site.scale_to(1)
            await served_model(site.url)
            async with Client(site.url, DEMO_MODEL) as client:
                await one_round(client, 1, 1.0)  # connections, caches, the first pass through the code
                found: dict[int, list[Report]] = {streams: [] for streams in options.streams}
                for _ in range(options.rounds):
                    for streams, reports in found.items():
                        reports.append(await one_round(client, streams, options.seconds))
        finally:
            await site.stop()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 where every answer was the right one, 1 where not, 2 where nothing could be measured."""
    parser = argparse.ArgumentParser(
        prog="bench.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="at the same time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="for the spread (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="per round (%(default)g)")
    try:
        found = asyncio.run(_measure(parser.parse_args(arguments)))
    except (GatewayUnavailable, UserError) as error:
        print(f"bench.streams: {error}", file=sys.stderr)
        return 2
    Console(width=110, highlight=False).print(_table(found))
    complaints = [text for reports in found.values() for one in reports for text in one.failed(require_exact=True)]
    for complaint in complaints:
        print(f"bench.streams: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _table(found: dict[int, list[Report]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("streams", "tokens/s: median", "lowest", "highest", "TBT ms: p50", "p99", "TTFT ms: p50"):
        table.add_column(heading, justify="right")
    for streams, reports in found.items():
        rates = sorted(report.tokens_per_s for report in reports)
        spreads = [report.spreads() for report in reports]
        between = [spread["TBT"] for spread in spreads]
        first = [spread["TTFT"] for spread in spreads]
        columns = (
            [spread.p50 for spread in between if spread],
            [spread.p99 for spread in between if spread],
            [spread.p50 for spread in first if spread],
        )
        table.add_row(
            str(streams),
            *(f"{rate:,.0f}" for rate in (percentile(rates, 0.5), rates[0], rates[-1])),
            *(f"{percentile(sorted(column), 0.5) * 1000:.1f}" if column else "-" for column in columns),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
