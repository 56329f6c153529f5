"""`orcastream completion SHELL`: print the script that completes commands, flags and their values."""

from collections.abc import Sequence

from orcastream.cli.completion.scripts import SCRIPTS
from orcastream.cli.completion.tree import places
from orcastream.cli.parse import load_settings
from orcastream.cli.settings import CompletionSettings


def main(arguments: Sequence[str]) -> int:
    """Print it."""
    settings = load_settings(CompletionSettings, arguments, "completion")
    print(SCRIPTS[settings.shell](places()), end="")
    return 0
