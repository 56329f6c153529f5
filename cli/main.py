"""The console command `orcastream`. Each command's code is loaded when it is asked for, so that --help is quick."""

import sys
from collections.abc import Sequence

from cli.command import Command, overview, run_command
from telemetry.version import own_version

COMMANDS = {
    "up": Command("Redis, a gateway and workers on this machine, in one terminal", "cli.up", "gateway,worker,embedded"),
    "gateway": Command("one gateway: HTTP in front of the queue", "cli.gateway", "gateway"),
    "worker": Command("one worker: a model behind the queue", "cli.worker", "worker"),
    "chat": Command("talk with a model in the terminal", "cli.chat", "gateway"),
    "requests": Command("what waits and runs: look at it, cancel it", "cli.requests.command"),
    "dead-letters": Command("requests that were set aside: look, run again, delete", "cli.dead_letters.command"),
    "keys": Command("API keys: make one, list, take one back", "cli.keys.command", "gateway"),
    "tokenize": Command("the token ids of a text", "cli.tokenize", "gateway"),
    "bench": Command("measure the engine, a gateway, or Redis", "bench.main"),
    "version": Command("the version of Orcastream", "cli.main"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `orcastream arguments`; returns the exit code, 2 where the command line or the settings cannot be used."""
    name, *rest = (list(sys.argv[1:]) if arguments is None else list(arguments)) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name in ("version", "--version", "-V"):
        print(f"orcastream {own_version()}")
        return 0
    return run_command("orcastream", COMMANDS, name, rest)


def _overview() -> str:
    return (
        "usage: orcastream COMMAND [--help] [FLAGS]\n\n"
        "LLM serving over Redis Streams with iteration-level scheduling.\n\n"
        f"commands:\n{overview(COMMANDS)}\n\n"
        "Every setting is a flag, an ORCASTREAM_ variable, or a line of .env; in this order, the first counts.\n"
        "`orcastream COMMAND --help` lists them."
    )


if __name__ == "__main__":
    sys.exit(main())
