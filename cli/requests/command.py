"""`orcastream requests`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from orcastream.cli.command import Command
from orcastream.cli.console.run import run_subcommand

_SETTINGS = "orcastream.cli.console.settings"

COMMANDS = {
    "list": Command(
        "what waits and runs, by class and age",
        "orcastream.cli.requests.list",
        settings=f"{_SETTINGS}:RequestsListSettings",
    ),
    "show": Command(
        "one request: where it stands, who works on it, how far it is",
        "orcastream.cli.requests.show",
        settings=f"{_SETTINGS}:RequestShowSettings",
    ),
    "cancel": Command(
        "cancel one request, whether it waits or runs",
        "orcastream.cli.requests.cancel",
        settings=f"{_SETTINGS}:RequestSettings",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    return run_subcommand("orcastream requests", COMMANDS, arguments)
