"""`orcastream keys`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from orcastream.cli.command import Command
from orcastream.cli.console.run import run_subcommand

_SETTINGS = "orcastream.cli.keys.settings"

COMMANDS = {
    "new": Command(
        "make a key and print it, this once", "orcastream.cli.keys.new", "gateway", f"{_SETTINGS}:NewKeySettings"
    ),
    "list": Command(
        "what is kept of the keys, and what they allow",
        "orcastream.cli.keys.list",
        "gateway",
        f"{_SETTINGS}:KeysSettings",
    ),
    "revoke": Command("take a key back", "orcastream.cli.keys.revoke", "gateway", f"{_SETTINGS}:RevokeSettings"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    return run_subcommand("orcastream keys", COMMANDS, arguments)
