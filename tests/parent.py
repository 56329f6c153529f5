"""Processes that never outlive their parent."""

import ctypes
import signal
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Make the kernel kill the calling process once its parent is gone; its own children must call this themselves."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """Return `command` wrapped so that the kernel kills its process as soon as the starting thread is gone.

    Does not use `preexec_fn`: between fork and exec, Python may wait forever for a lock that another thread held, and
    the process that starts it waits too.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]
