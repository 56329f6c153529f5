"""`orcastream keys`: its sub-commands, each loaded on demand."""

from collections.abc import Sequence

from orcastream.cli.command import Command
from orcastream.cli.console.run import run_subcommand

_SETTINGS = "orcastream.cli.keys.settings"

COMMANDS = {
    "new": Command(
        "create a key and print it once", "orcastream.cli.keys.new", "gateway", f"{_SETTINGS}:NewKeySettings"
    ),
    "list": Command(
        "list the stored keys' hashes and what they allow",
        "orcastream.cli.keys.list",
        "gateway",
        f"{_SETTINGS}:KeysSettings",
    ),
    "revoke": Command("revoke a key", "orcastream.cli.keys.revoke", "gateway", f"{_SETTINGS}:RevokeSettings"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of the sub-commands; return the exit code."""
    return run_subcommand("orcastream keys", COMMANDS, arguments)
