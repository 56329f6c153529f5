"""`orcastream dead-letters`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from orcastream.cli.command import Command
from orcastream.cli.console.run import run_subcommand

_SETTINGS = "orcastream.cli.console.settings"

COMMANDS = {
    "list": Command(
        "the dead letters, the newest first",
        "orcastream.cli.dead_letters.list",
        settings=f"{_SETTINGS}:LettersListSettings",
    ),
    "show": Command(
        "one dead letter, and what is known of its request",
        "orcastream.cli.dead_letters.show",
        settings=f"{_SETTINGS}:LetterShowSettings",
    ),
    "replay": Command(
        "run what it asked for again, under a new id",
        "orcastream.cli.dead_letters.replay",
        settings=f"{_SETTINGS}:ReplaySettings",
    ),
    "purge": Command(
        "delete dead letters by reason, by age, or all",
        "orcastream.cli.dead_letters.purge",
        settings=f"{_SETTINGS}:PurgeSettings",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    return run_subcommand("orcastream dead-letters", COMMANDS, arguments)
