"""The console command `orcastream`. Each command's code is loaded on demand, so that --help is fast."""

import sys
from collections.abc import Sequence

from orcastream.cli.command import fail, overview, run_command
from orcastream.cli.commands import COMMANDS
from orcastream.cli.torchless import leave_out_torch
from orcastream.telemetry.standard_streams import UNWRITABLE, forget, mend_streams
from orcastream.telemetry.version import own_version


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `orcastream arguments`; return the exit code, 2 if the command line or the settings are unusable.

    None means the arguments of this process, which then belongs to the command.
    """
    if arguments is None:
        mend_streams()
    name, *rest = (list(sys.argv[1:]) if arguments is None else list(arguments)) or ["--help"]
    try:
        code = _run(name, rest, own=arguments is None)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        forget(sys.stdout)
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            return 0
        return fail(f"orcastream {name}", f"its output or data cannot be written: {error.strerror}", code=1)
    return code


def _run(name: str, rest: Sequence[str], *, own: bool) -> int:
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name in ("version", "--version", "-V"):
        if rest:
            return fail("orcastream version", f"got {rest[0]!r}, allowed: no arguments")
        print(f"orcastream {own_version()}")
        return 0
    if own and name in COMMANDS and COMMANDS[name].reads_text:
        leave_out_torch()
    return run_command("orcastream", COMMANDS, name, rest)


def _overview() -> str:
    return (
        "usage: orcastream COMMAND [--help] [FLAGS]\n\n"
        "LLM serving over Redis Streams with iteration-level scheduling.\n\n"
        f"commands:\n{overview(COMMANDS)}\n\n"
        "A setting of the service is a flag, an ORCASTREAM_ variable, or a line of .env, in this order of precedence.\n"
        "What a single command does is told by its flags alone. `orcastream COMMAND --help` lists both."
    )


if __name__ == "__main__":
    sys.exit(main())
