"""The console command `orcastream`. Each command's code is loaded when it is asked for, so that --help is quick."""

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from telemetry.version import own_version


class Command(NamedTuple):
    """A command: what it does, and the module whose `main(arguments) -> exit code` does it."""

    summary: str
    module: str
    extra: str | None = None


COMMANDS = {
    "up": Command("Redis, a gateway and workers on this machine, in one terminal", "cli.up", "gateway,worker,embedded"),
    "gateway": Command("one gateway: HTTP in front of the queue", "cli.gateway", "gateway"),
    "worker": Command("one worker: a model behind the queue", "cli.worker", "worker"),
    "chat": Command("talk with a model in the terminal", "cli.chat", "gateway"),
    "tokenize": Command("the token ids of a text", "cli.tokenize", "gateway"),
    "version": Command("the version of Orcastream", "cli.main"),
}

_USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `orcastream arguments`; returns the exit code, 2 where the command line or the settings cannot be used."""
    name, *rest = (list(sys.argv[1:]) if arguments is None else list(arguments)) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name in ("version", "--version", "-V"):
        print(f"orcastream {own_version()}")
        return 0
    if name not in COMMANDS:
        return _fail("orcastream", f"command: got {name!r}, allowed: {', '.join(COMMANDS)}")
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    from cli.errors import UserError  # the settings library takes a moment: not for --help

    try:
        return int(importlib.import_module(COMMANDS[name].module).main(arguments))
    except UserError as error:
        return _fail(f"orcastream {name}", *error.lines)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN_ROOMS:
            raise
        wanted = f"pip install 'orcastream[{COMMANDS[name].extra}]'"
        return _fail(f"orcastream {name}", f"the package {error.name} is not installed: {wanted}")
    except KeyboardInterrupt:
        return 130


_OWN_ROOMS = ("schemas", "engine", "text", "broker", "worker", "gateway", "telemetry", "cli", "demo")


def _fail(who: str, *lines: str) -> int:
    for line in lines:
        print(f"{who}: {' '.join(line.split())}", file=sys.stderr)
    return _USAGE_ERROR


def _overview() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        "usage: orcastream COMMAND [--help] [FLAGS]\n\n"
        "LLM serving over Redis Streams with iteration-level scheduling.\n\n"
        f"commands:\n{commands}\n\n"
        "Every setting is a flag, an ORCASTREAM_ variable, or a line of .env; in this order, the first counts.\n"
        "`orcastream COMMAND --help` lists them."
    )


if __name__ == "__main__":
    sys.exit(main())
