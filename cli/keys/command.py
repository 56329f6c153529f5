"""`orcastream keys`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from cli.command import Command
from cli.console.run import run_subcommand

COMMANDS = {
    "new": Command("make a key and print it, this once", "cli.keys.new", "gateway"),
    "list": Command("what is kept of the keys, and what they allow", "cli.keys.list", "gateway"),
    "revoke": Command("take a key back", "cli.keys.revoke", "gateway"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    return run_subcommand("orcastream keys", COMMANDS, arguments)
