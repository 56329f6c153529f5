"""Process 1 of a container without an init: passes signals on to the command, and reaps what the kernel gives it."""

import os
import signal
from contextlib import suppress

from orcastream.telemetry.leaving import stop_signals


def continue_below_init() -> None:
    """In process 1, continue in a child: the parent reaps orphans, and ends with the child's exit code, as tini does.

    Otherwise orphans of the command's processes, and those of `docker exec`, would stay as zombies: asyncio waits for
    its own children alone. In any other process nothing happens. Call it before a thread starts.
    """
    if os.getpid() != 1:
        return
    awaited = {*stop_signals(), signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # none is lost before it is waited for
    command = os.fork()
    if command == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while (code := _reap(command)) is None:
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            os.kill(command, number)  # which exists until it is reaped here
    os._exit(code)


def _reap(command: int) -> int | None:
    """Reap every child that has ended; return the exit code of `command` if it is among them, in the shell's form."""
    code = None
    with suppress(ChildProcessError):  # there is no child left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == command:
                code = os.waitstatus_to_exitcode(ended[1])
    return code if code is None or code >= 0 else 128 - code
