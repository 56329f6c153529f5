"""Measure what being watched by the console costs a worker.

One worker with the demo model runs in this process and serves rounds of requests posted at once, alternately watched,
as by the console, and unwatched. Each pair of rounds gives a ratio of rates, which includes the machine's noise, and
one of the process's CPU time per token, which is less noisy. The gateway's work is not included.
Exit status: 0 if the median CPU time grows by less than the goal, else 1.
"""

import asyncio
import os
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.flags import Parser, at_least

if TYPE_CHECKING:
    from orcastream.bench.watched_worker import Round

MOST_COST = 0.01


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    parser = Parser("console-cost", __doc__)
    parser.add_argument("--rounds", type=at_least(2), default=40, help="pairs of rounds (%(default)s)")
    parser.add_argument("--requests", type=at_least(1), default=64, help="requests posted at once (%(default)s)")
    parser.add_argument("--tokens", type=at_least(1), default=96, help="output tokens of each request (%(default)s)")
    options = parser.parse_args(list(arguments))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from orcastream.bench.watched_worker import measure  # it loads torch, for which --help need not wait

    pairs = asyncio.run(measure(options))
    cost = _print(pairs)
    return 0 if cost < MOST_COST else 1


def _print(pairs: "Sequence[tuple[Round, Round]]") -> float:
    """Print the table; return the median growth of the CPU time."""
    table = Table(box=box.SIMPLE, pad_edge=False, title=f"{len(pairs)} pairs of rounds", title_justify="left")
    for heading in ("", "not watched", "watched", "cost: median", "quartiles"):
        table.add_column(heading, justify="right")
    rates = [1 - watched.rate / alone.rate for alone, watched in pairs]
    cpus = [watched.cpu_us / alone.cpu_us - 1 for alone, watched in pairs]
    for name, read, costs in (("output tokens/s", "rate", rates), ("CPU per output token, µs", "cpu_us", cpus)):
        medians = [statistics.median(getattr(pair[index], read) for pair in pairs) for index in (0, 1)]
        low, middle, high = statistics.quantiles(costs, n=4)
        table.add_row(name, *(f"{one:,.0f}" for one in medians), f"{middle:+.2%}", f"{low:+.2%} … {high:+.2%}")
    Console(width=100).print(table)
    return statistics.median(cpus)
