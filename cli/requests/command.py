"""`orcastream requests`: its sub-commands, each loaded on demand."""

from collections.abc import Sequence

from orcastream.cli.command import Command
from orcastream.cli.console.run import run_subcommand

_SETTINGS = "orcastream.cli.console.settings"

COMMANDS = {
    "list": Command(
        "list waiting and running requests by class and age",
        "orcastream.cli.requests.list",
        settings=f"{_SETTINGS}:RequestsListSettings",
    ),
    "show": Command(
        "show one request: its state, its worker and its progress",
        "orcastream.cli.requests.show",
        settings=f"{_SETTINGS}:RequestShowSettings",
    ),
    "cancel": Command(
        "cancel one waiting or running request",
        "orcastream.cli.requests.cancel",
        settings=f"{_SETTINGS}:RequestSettings",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of the sub-commands; return the exit code."""
    return run_subcommand("orcastream requests", COMMANDS, arguments)
