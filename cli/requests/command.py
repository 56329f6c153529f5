"""`orcastream requests`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from cli.command import Command
from cli.console.run import run_subcommand

COMMANDS = {
    "list": Command("what waits and runs, by class and age", "cli.requests.list"),
    "show": Command("one request: where it stands, who works on it, how far it is", "cli.requests.show"),
    "cancel": Command("cancel one request, whether it waits or runs", "cli.requests.cancel"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    return run_subcommand("orcastream requests", COMMANDS, arguments)
