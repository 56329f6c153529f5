"""List the workloads and their requests."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.flags import Parser
from orcastream.bench.workloads import WORKLOADS


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    Parser("workloads", __doc__).parse_args(list(arguments))
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    table.add_column("requests", justify="right")
    table.add_column("what")
    for workload in WORKLOADS.values():
        table.add_row(workload.name, str(workload.requests), workload.description)
    Console(highlight=False).print(table)
    return 0
