"""Commands whose code is loaded on demand, so that --help is fast."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orcastream.telemetry.standard_streams import print_or_drop

USAGE_ERROR = 2
_INTERRUPTED = 130
_OWN = "orcastream"


class Command(NamedTuple):
    """A command: its summary, and the module whose `main(arguments) -> exit code` runs it.

    `settings` is the class of its flags, as `module:Class`. If `has_commands`, the module lists its sub-commands in
    `COMMANDS`. If `reads_text`, the command loads transformers for tokenizers and configurations alone.
    """

    summary: str
    module: str
    extra: str | None = None
    settings: str | None = None
    has_commands: bool = False
    reads_text: bool = False


def run_command(program: str, commands: Mapping[str, Command], name: str, arguments: Sequence[str]) -> int:
    """Run `program name arguments`; return the exit code, and print one line if the command failed."""
    if name not in commands:
        return fail(program, f"command: got {name!r}, allowed: {', '.join(commands)}")
    from orcastream.cli.errors import UserError

    try:
        return int(importlib.import_module(commands[name].module).main(list(arguments)))
    except UserError as error:
        return fail(f"{program} {name}", *error.lines, code=error.code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == _OWN:
            raise
        wanted = f"pip install 'orcastream[{commands[name].extra}]'"
        return fail(f"{program} {name}", f"the package {error.name} is not installed: {wanted}")
    except KeyboardInterrupt:
        return _INTERRUPTED


def overview(commands: Mapping[str, Command]) -> str:
    """Return one line per command."""
    width = max(map(len, commands))
    return "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in commands.items())


def fail(who: str, *lines: str, code: int = USAGE_ERROR) -> int:
    """Print errors, one line each; return the exit code."""
    warn(who, *lines)
    return code


def warn(who: str, *lines: str) -> None:
    """Print messages on standard error, one line each; the exit code does not depend on whether that is possible."""
    for line in lines:
        print_or_drop(f"{who}: {' '.join(line.split())}", sys.stderr)
