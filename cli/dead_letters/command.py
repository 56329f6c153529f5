"""`orcastream dead-letters`: its sub-commands, each loaded on demand."""

from collections.abc import Sequence

from orcastream.cli.command import Command
from orcastream.cli.console.run import run_subcommand

_SETTINGS = "orcastream.cli.console.settings"

COMMANDS = {
    "list": Command(
        "list the dead letters, newest first",
        "orcastream.cli.dead_letters.list",
        settings=f"{_SETTINGS}:LettersListSettings",
    ),
    "show": Command(
        "show one dead letter and what is known about its request",
        "orcastream.cli.dead_letters.show",
        settings=f"{_SETTINGS}:LetterShowSettings",
    ),
    "replay": Command(
        "run its request again, under a new id",
        "orcastream.cli.dead_letters.replay",
        settings=f"{_SETTINGS}:ReplaySettings",
    ),
    "purge": Command(
        "delete dead letters by reason, by age, or all of them",
        "orcastream.cli.dead_letters.purge",
        settings=f"{_SETTINGS}:PurgeSettings",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of the sub-commands; return the exit code."""
    return run_subcommand("orcastream dead-letters", COMMANDS, arguments)
