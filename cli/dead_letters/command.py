"""`orcastream dead-letters`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from cli.command import Command
from cli.console.run import run_subcommand

COMMANDS = {
    "list": Command("the dead letters, the newest first", "cli.dead_letters.list"),
    "show": Command("one dead letter, and what is known of its request", "cli.dead_letters.show"),
    "replay": Command("run what it asked for again, under a new id", "cli.dead_letters.replay"),
    "purge": Command("delete dead letters by reason, by age, or all", "cli.dead_letters.purge"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    return run_subcommand("orcastream dead-letters", COMMANDS, arguments)
